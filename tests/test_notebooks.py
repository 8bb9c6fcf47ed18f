"""Notebooks: how they are stored, how they are run, and their pages."""

import ast
import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote

import nbformat
import numpy as np
import psutil
import pytest

import conftest
from browser import axe_missing
from conftest import PACKAGES, ROOT, copy_tree, refused
from gradleak.errors import ArtifactError, NotebookError
from gradleak.plotting.side_by_side import NAMES as LEFT
from gradleak.plotting.side_by_side import Row, draw
from gradleak.reporting.notebooks import clean, execute, page, source
from gradleak.reporting.notebooks.source import DEFAULTS, INJECTED
from gradleak.runtime.provenance import code_hash, dependencies
from html_tree import parse

STORED = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in STORED]
# One for each paper and one on audits; what is more is somebody's own, in a style of their own.
OURS = ("audit", "copa", "fedkl", "mkor", "rgap")
WIDTHS, SCHEMES = (360, 1280), ("light", "dark")
PAGES = "results/notebooks"
BY_NAME = {"gradleak.audit": ("gradleak_audit.api",)}
each = pytest.mark.parametrize("path", STORED, ids=NAMES)
ours = pytest.mark.parametrize("path", [ROOT / "notebooks" / f"{n}.ipynb" for n in OURS], ids=OURS)
# The smallest PNG: one pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
DOT += "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
v4 = nbformat.v4


def notebook(*cells):
    """A notebook that begins as ours do; code, or Markdown where it starts with '#', '$' or '['."""
    setting = v4.new_code_cell('scale = "smoke"', metadata={"tags": [DEFAULTS]})
    code, words = v4.new_code_cell, v4.new_markdown_cell
    made = [words(text) if text[0] in "#$[" else code(text) for text in cells]
    return v4.new_notebook(cells=[words("# Title"), setting, *made])


def store(path, *cells):
    path.write_text(nbformat.writes(notebook(*cells)))
    return path


def run(*cells):
    done = execute.run(notebook(*cells), "mine.ipynb")
    return "".join(o.get("text", "") for cell in source.code_cells(done) for o in cell.outputs)


@each
def test_it_is_stored_without_what_a_run_or_a_machine_leaves(path):
    advice = f"run python -m gradleak.reporting.notebooks.clean notebooks/{path.name}"
    assert path.read_text() == clean.text(source.read(path)), advice
    stored = json.loads(path.read_text())
    assert stored["metadata"].pop("kernelspec")["name"] == "python3"
    assert stored["metadata"] == {"language_info": {"name": "python"}}
    for cell in stored["cells"]:
        assert set(cell["metadata"]) <= {"tags"}
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert cell["cell_type"] != "code" or ast.parse("".join(cell["source"]))


def prose_of(path):
    cells = source.read(path).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@each
def test_it_has_what_every_notebook_needs(path):
    found = source.read(path)
    page.title_of(found, path)
    source.with_parameters(found, {"scale": "smoke"}, path)
    named = re.findall(r"\]\(([^)\s#]+)", prose_of(path))
    links = [unquote(link) for link in named if page.RELATIVE.match(link)]
    assert all((path.parent / link).is_file() for link in links), links


@ours
def test_it_is_short_and_says_what_the_pipeline_sets(path):
    assert 8 <= len(source.read(path).cells) <= 15
    prose = prose_of(path)
    assert f"snakemake results/notebooks/{path.stem}.html" in prose and "`scale`" in prose
    assert "](../docs/" in prose
    assert path.stem == "audit" or ("$$" in prose and "eq. (" in prose)


@ours
def test_its_code_hash_has_every_module_that_it_runs(path):
    found = source.modules(path, BY_NAME)
    assert "gradleak.plotting.side_by_side" in found
    reached = {name for module in found for name in dependencies(module)}
    wanted = {"audit": "gradleak_audit.run", "mkor": "gradleak.servers.plan"}
    assert wanted.get(path.stem, "gradleak.client.capture") in reached
    assert code_hash(*found) != code_hash("gradleak.plotting.side_by_side")


def test_names_that_the_package_looks_up_count(tmp_path):
    path = store(tmp_path / "a.ipynb", "%matplotlib agg\nfrom gradleak import audit", "import os")
    assert source.modules(path, BY_NAME) == ["gradleak", "gradleak_audit.api"]
    path.write_text("{")
    assert source.modules(path, {}) == []


def test_cleaning_removes_all_that_a_run_leaves(tmp_path):
    path = store(tmp_path / "a.ipynb", "print(1)", "   ")
    content = execute.run(source.read(path), path)
    content.metadata["signature"] = "x"
    content.cells[0].metadata["collapsed"] = True
    path.write_text(nbformat.writes(content))
    clean.clean(path)
    found = source.read(path)
    assert path.read_text() == clean.text(found)
    assert [cell.source for cell in found.cells] == ["# Title", 'scale = "smoke"', "print(1)"]
    assert found.cells[1].metadata == {"tags": [DEFAULTS]}


def test_parameters_follow_their_defaults():
    before = notebook("print(scale)")
    after = source.with_parameters(before, {"scale": "laptop"}, "a.ipynb")
    assert [cell.get("id") == INJECTED for cell in after.cells] == [False, False, True, False]
    assert len(before.cells) == 3
    assert run("scale = 'paper'", "print(scale)") == "paper\n"
    assert "laptop" in execute.run(after, "a.ipynb").cells[3].outputs[0].text
    before.cells[1].source = 'scale: str = "smoke"'
    assert "laptop" in source.with_parameters(before, {"scale": "laptop"}, "").cells[2].source
    # A cell of parameters that is no Python is one sentence.
    before.cells.insert(1, v4.new_code_cell("import os"))
    before.cells[2].source = "%matplotlib inline\nscale = = 1"
    said = "mine.ipynb: code cell 2, tagged 'parameters', is not Python at line 2 ("
    with refused(said, kind=NotebookError):
        source.with_parameters(before, {"scale": "smoke"}, "mine.ipynb")


MADE = nbformat.writes(notebook())
UNFIT = [
    (None, ["a.ipynb: No such file"]),
    ("{", ["a.ipynb is not a notebook"]),
    (
        '{"cells": [], "nbformat": 4, "nbformat_minor": 5}',
        ["a.ipynb is not a notebook", "metadata"],
    ),
    (nbformat.writes(v4.new_notebook()), ["no code cell tagged 'parameters'", "scale"]),
    (MADE.replace("scale =", "amount ="), ["'parameters' does not set scale"]),
    (MADE.replace("scale =", "scale: str #"), ["'parameters' does not set scale"]),
]


@pytest.mark.parametrize(("content", "words"), UNFIT)
def test_a_file_that_is_no_such_notebook_is_one_sentence(tmp_path, content, words):
    path = tmp_path / "a.ipynb"
    if content is not None:
        path.write_text(content)
    with refused(*words, kind=ArtifactError):
        source.with_parameters(source.read(path), {"scale": ""}, path)


def test_the_kernel_is_this_python_with_this_package_and_leaves_nothing(monkeypatch, tmp_path):
    """Also with no PYTHONPATH, a home of its own, and a kernel called python3 that is broken."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    kernels = tmp_path / "jupyter" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text('{"argv": ["false"], "display_name": "x", "language": ""}')
    monkeypatch.setenv("JUPYTER_PATH", str(kernels.parents[1]))
    (home := tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(execute, "PYTHON_PATH", [*PACKAGES, *filter(None, map(str, sys.path))])
    asked = "print(sys.executable, gradleak.__file__, os.getcwd(), os.getpid(), sep='\\n')"
    python, package, folder, kernel = run("import os, sys, gradleak", asked).split()
    assert Path(python).resolve() == Path(sys.executable).resolve()
    assert Path(package) == ROOT / "src/gradleak/__init__.py"
    # With the process its sockets are gone too.
    assert not Path(folder).exists() and not psutil.pid_exists(int(kernel))
    assert not list(home.iterdir())


FAILING = [
    (["1 / 0", "print(2)"], "code cell 2 fails with ZeroDivisionError: division by zero"),
    (["x = 1", "# words", "def f(:"], "code cell 3 fails with SyntaxError"),
    (["import os", "os._exit(3)", "print(1)"], "code cell 3 ended its kernel"),
]


@pytest.mark.parametrize(("cells", "words"), FAILING)
def test_a_cell_that_fails_is_one_sentence(cells, words):
    given = source.with_parameters(notebook(*cells), {"scale": "smoke"}, "mine.ipynb")
    with refused(f"mine.ipynb: {words}", kind=NotebookError):
        execute.run(given, "mine.ipynb")


def written(tmp_path, *cells):
    (tmp_path / "pages").mkdir(exist_ok=True)
    made = tmp_path / "pages" / "mine.html"
    page.write(notebook(*cells), tmp_path / "mine.ipynb", made)
    return made.read_text()


def test_equations_are_mathml_and_links_hold_from_the_page(tmp_path):
    html = written(tmp_path, "# x < $a_b$\n\n$$\\frac{1}{2} < c$$", "[a](docs/a.md) [b](https://b)")
    tree = parse(html)
    assert [tag["display"] for tag in tree.all("math")] == ["inline", "block"]
    assert "$" not in html and tree.all("mfrac")
    assert [tag["href"] for tag in tree.all("a")] == ["../docs/a.md", "https://b"]
    assert not tree.all("script") and not tree.all("link")
    untitled = v4.new_notebook(cells=[v4.new_code_cell("1")])
    with refused("does not begin with a heading", kind=NotebookError):
        page.write(untitled, "a.ipynb", tmp_path / "a.html")


def test_images_of_the_text_become_part_of_the_page(tmp_path):
    for name in ("a b.png", "b.png", "c.png"):
        (tmp_path / name).write_bytes(base64.b64decode(DOT))
    text = """# x ![one](a%20b.png "t") <img alt="two" src="b.png">"""
    text += "\n\n<img src='c.png' alt='three'>"
    data = f"data:image/png;base64,{DOT}"
    images = parse(written(tmp_path, text, f"[r]: c.png\n\n![four][r] ![five]({data})")).all("img")
    assert [image["src"] for image in images] == [data] * 5
    assert [image.get("alt") for image in images] == ["one", "two", "three", "four", "five"]
    path = store(tmp_path / "a.ipynb", text, "[r]: c.png\n\n![four][r] ![gone](gone.png)")
    assert [Path(name).name for name in source.images(path)] == ["a b.png", "b.png", "c.png"]
    assert source.images(tmp_path / "none.ipynb") == []


UNSHOWN = {
    "# ![a](gone.png)": ["'gone.png' cannot be read (No such file or directory)"],
    "# <img src='gone.png'>": ["'gone.png' cannot be read"],
    "# ![a](https://x/a.png)": ["'https://x/a.png' cannot become part", "as a file"],
    "# ![a](attachment:a.png)": ["'attachment:a.png' cannot become part"],
    "# ![a](a.txt)": ["'a.txt' cannot become part", ".png"],
    "$\\unheard{x}$": ["\\unheard{x}"],
    "# a $$\\frac{1}{2} \\unheard{x}$$": ["\\unheard{x}"],
}


@pytest.mark.parametrize(("cell", "words"), UNSHOWN.items())
def test_an_image_or_equation_that_cannot_be_shown_leaves_no_page(tmp_path, cell, words):
    (tmp_path / "a.txt").touch()
    with refused("mine.ipynb: ", *words, kind=NotebookError):
        written(tmp_path, cell)
    assert not list((tmp_path / "pages").iterdir())


def test_printed_columns_stay_below_one_another_and_sentences_wrap(tmp_path):
    said, printed = notebook("print()"), ("layer   free\nconv1     55\n", "  One sentence. Two.\n")
    said.cells[2].outputs = [v4.new_output("stream", text=text) for text in printed]
    said.cells[2].outputs.append(v4.new_output("display_data", {"text/plain": "a   b"}))
    page.write(said, tmp_path / "a.ipynb", tmp_path / "a.html")
    found = parse((tmp_path / "a.html").read_text()).all("pre")
    assert [tag.get("class") for tag in found[-3:]] == ["columns", None, "columns"]


def test_pictures_of_a_row_can_stand_below_those_of_another():
    image = np.zeros((3, 1, 2, 2))
    figure = draw([Row("all", image), Row("last", image[:1], ["1 dB"], skip=2)])
    boxes = [axes.get_position() for axes in figure.axes]
    assert boxes[3].x0 == pytest.approx(boxes[2].x0) and boxes[3].y0 < boxes[2].y0
    assert draw([Row("last", image[:1], skip=2)]).get_size_inches()[0] > LEFT + 3


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A tree in which the target ran, without PYTHONPATH but for libraries, and a failing one."""
    tree = copy_tree(tmp_path_factory.mktemp("notebooks") / "tree")
    store(tree / "notebooks" / "failing.ipynb", "x = 1", "raise ValueError('of mine')")
    return tree, make(tree, "--keep-going", "--", "notebooks")


def make(tree, *arguments):
    command = (sys.executable, "-m", "snakemake", "-c1", "--config", "scale=smoke")
    return conftest.run(*command, *arguments, cwd=tree)


@pytest.mark.slow
def test_the_target_makes_every_page_but_that_of_the_failing_notebook(built):
    tree, done = built
    assert done.returncode == 1
    assert sorted(p.name for p in (tree / PAGES).iterdir()) == [f"{name}.html" for name in NAMES]
    said = "notebooks/failing.ipynb: code cell 3 fails with ValueError: of mine; open the notebook "
    said += "in Jupyter, mend the cell, and run all cells."
    assert done.stderr.count(f"gradleak: {said}") == 1 and "Traceback" not in done.stderr
    assert said in (tree / "results/logs/notebooks/failing.log").read_text()


@pytest.mark.parametrize("name", OURS)
@pytest.mark.slow
def test_a_page_is_whole_and_asks_for_nothing(built, name):
    tree = parse((built[0] / PAGES / f"{name}.html").read_text())
    assert not tree.all("script") and not tree.all("link") and not tree.all("iframe")
    images = tree.all("img")
    assert images and all(image["src"].startswith("data:image/png") for image in images)
    assert all("picture" in image["alt"] for image in images)
    assert any(" dB" in image["alt"] for image in images)
    assert "stderr" not in [tag.get("class") for tag in tree.all("pre")]
    for link in tree.all("a"):
        assert link["href"].startswith("../../docs/")
        assert (ROOT / link["href"].removeprefix("../../")).is_file()


@pytest.mark.slow
def test_a_notebook_runs_to_the_same_bytes_and_again_only_after_a_change(built):
    tree, _ = built
    file = tree / PAGES / "fedkl.html"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    again = make(tree, "--", f"{PAGES}/fedkl.html")
    assert "Nothing to be done" in again.stdout + again.stderr
    code = tree / "src/gradleak/attacks/closed_form/keylock_inversion.py"
    code.write_text(code.read_text().replace("CONDITION =", "UNUSED = 1\nCONDITION =", 1))
    assert "UNUSED" in code.read_text()
    again = make(tree, "--", f"{PAGES}/fedkl.html")
    assert again.returncode == 0, again.stderr
    assert "1 of 1 jobs done" in again.stdout + again.stderr
    assert hashlib.sha256(file.read_bytes()).hexdigest() == digest


RUN = """
import sys
from gradleak.runtime import signals
from gradleak.reporting.notebooks import execute, source
with signals.clean_up_on_signals():
    execute.run(source.read(sys.argv[1]), "a")
"""


def test_a_signal_ends_the_kernel_too(tmp_path):
    """Nothing of the page is left, nor a process, nor a folder of the kernel's."""
    started = tmp_path / "started"
    path = store(
        tmp_path / "a.ipynb",
        f"import os, pathlib, time\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))",
        "time.sleep(600)",
    )
    (folder := tmp_path / "tmp").mkdir()
    command = [sys.executable, "-c", RUN, str(path)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    job = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 60
        while not (started.exists() and started.read_text()):
            assert job.poll() is None and time.monotonic() < end, "the kernel does not start"
            time.sleep(0.05)
        kernel = psutil.Process(int(started.read_text()))
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 128 + signal.SIGTERM
    kernel.wait(30)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_a_page_opens_without_errors_and_fits_its_window(browser, built, name, width, scheme):
    tab = browser.open(built[0] / PAGES / f"{name}.html", width=width, scheme=scheme)
    try:
        assert tab.problems() == []
        asked = [url for url in tab.requests() if not url.startswith("data:")]
        assert [url.rpartition("/")[2] for url in asked] == [f"{name}.html"]
        assert tab.js("document.documentElement.scrollWidth") == width
        broken = "Array.from(document.images).filter(i => !i.complete || !i.naturalWidth).length"
        assert tab.js(broken) == 0
        if name in OURS and width == WIDTHS[0]:  # on a telephone pictures keep their size
            narrower = "[...document.images].filter(i => i.width < i.getAttribute('width'))"
            wrapped = "[...document.querySelectorAll('pre.columns')]"
            wrapped += ".filter(p => getComputedStyle(p).whiteSpace !== 'pre')"
            assert [tab.js(f"{found}.length") for found in (narrower, wrapped)] == [0, 0]
        if not axe_missing():
            assert tab.axe() == []
    finally:
        tab.close()
