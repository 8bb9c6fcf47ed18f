"""Notebooks: how they are stored, how they are run, and their pages."""

import ast
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
import psutil
import pytest

import conftest
from browser import axe_missing
from conftest import PACKAGES, ROOT, copy_tree, sentence
from gradleak.errors import ArtifactError, NotebookError
from gradleak.reporting.notebooks import clean, execute, page, source
from gradleak.reporting.notebooks.source import DEFAULTS, INJECTED
from gradleak.runtime.provenance import code_hash, dependencies
from html_tree import parse
from notebook_cases import notebook, store

STORED = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in STORED]
# One for each paper and one on audits; what is more is somebody's own, in a style of their own.
OURS = ("audit", "copa", "fedkl", "mkor", "rgap")
WIDTHS, SCHEMES = (360, 1280), ("light", "dark")
each = pytest.mark.parametrize("path", STORED, ids=NAMES)
ours = pytest.mark.parametrize("path", [ROOT / "notebooks" / f"{n}.ipynb" for n in OURS], ids=OURS)


def run(*cells):
    done = execute.run(notebook(*cells), "mine.ipynb")
    return "".join(o.get("text", "") for cell in source.code_cells(done) for o in cell.outputs)


@each
def test_it_is_stored_without_what_a_run_or_a_machine_leaves(path):
    assert path.read_text() == clean.text(source.read(path)), (
        f"run python -m gradleak.reporting.notebooks.clean notebooks/{path.name}"
    )
    stored = json.loads(path.read_text())
    assert set(stored["metadata"]) == {"kernelspec", "language_info"}
    assert stored["metadata"]["kernelspec"]["name"] == "python3"
    assert stored["metadata"]["language_info"] == {"name": "python"}
    for cell in stored["cells"]:
        assert set(cell["metadata"]) <= {"tags"}
        assert not cell.get("outputs") and cell.get("execution_count") is None


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
    for cell in source.code_cells(found):
        ast.parse(cell.source)


@ours
def test_it_is_short_and_says_what_the_pipeline_sets(path):
    assert 8 <= len(source.read(path).cells) <= 15
    prose = prose_of(path)
    assert f"snakemake results/notebooks/{path.stem}.html" in prose and "`scale`" in prose
    assert "](../docs/" in prose
    if path.stem != "audit":
        assert "$$" in prose and "eq. (" in prose


@ours
def test_its_code_hash_has_every_module_that_it_runs(path):
    by_name = {"gradleak.audit": ("gradleak_audit.api",)}
    found = source.modules(path, by_name)
    assert "gradleak.plotting.side_by_side" in found
    reached = {name for module in found for name in dependencies(module)}
    wanted = {"audit": "gradleak_audit.run", "mkor": "gradleak.servers.plan"}
    assert wanted.get(path.stem, "gradleak.client.capture") in reached
    assert code_hash(*found) != code_hash("gradleak.plotting.side_by_side")


def test_names_that_the_package_looks_up_count(tmp_path):
    cells = ("%matplotlib inline\nfrom gradleak import audit", "import os")
    path, by_name = store(tmp_path / "a.ipynb", *cells), {"gradleak.audit": ("gradleak_audit.api",)}
    assert source.modules(path, by_name) == ["gradleak", "gradleak_audit.api"]
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


MADE = nbformat.writes(notebook())
UNFIT = [
    (None, ["a.ipynb: No such file"]),
    ("{", ["a.ipynb is no notebook"]),
    ('{"cells": [], "nbformat": 4, "nbformat_minor": 5}', ["a.ipynb is no notebook", "metadata"]),
    (nbformat.writes(nbformat.v4.new_notebook()), ["no code cell tagged 'parameters'", "scale"]),
    (MADE.replace("scale =", "amount ="), ["'parameters' does not set scale"]),
    (MADE.replace("scale =", "scale: str #"), ["'parameters' does not set scale"]),
]


@pytest.mark.parametrize(("content", "words"), UNFIT)
def test_a_file_that_is_no_such_notebook_is_one_sentence(tmp_path, content, words):
    path = tmp_path / "a.ipynb"
    if content is not None:
        path.write_text(content)
    read = lambda: source.with_parameters(source.read(path), {"scale": ""}, path)  # noqa: E731
    text = sentence(ArtifactError, read)
    assert all(word in text for word in words), text


def test_a_cell_of_parameters_that_is_no_python_is_one_sentence():
    before = notebook("print(scale)")
    before.cells.insert(1, nbformat.v4.new_code_cell("import os"))
    before.cells[2].source = "%matplotlib inline\nscale = = 1"
    values = {"scale": "smoke"}
    text = sentence(NotebookError, source.with_parameters, before, values, "mine.ipynb")
    assert text.startswith("mine.ipynb: code cell 2, tagged 'parameters', is no Python at line 2 (")
    assert text.endswith(".")


def test_the_kernel_is_this_python_with_this_package_and_leaves_nothing(monkeypatch, tmp_path):
    """Also with no PYTHONPATH, a home of its own, and a kernel called python3 that is broken."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    kernels = tmp_path / "jupyter" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text('{"argv": ["false"], "display_name": "x", "language": ""}')
    monkeypatch.setenv("JUPYTER_PATH", str(kernels.parents[1]))
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    libraries = [*PACKAGES, *filter(None, map(str, sys.path))]
    monkeypatch.setattr(execute, "PYTHON_PATH", libraries)
    printed = run(
        "import os, sys, gradleak",
        "print(sys.executable, gradleak.__file__, os.getcwd(), os.getpid(), sep='\\n')",
    )
    python, package, folder, kernel = printed.split()
    assert Path(python).resolve() == Path(sys.executable).resolve()
    assert Path(package) == ROOT / "src/gradleak/__init__.py"
    # With the process its sockets are gone too.
    assert not Path(folder).exists() and not psutil.pid_exists(int(kernel))
    assert not list(home.iterdir())


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["1 / 0", "print(2)"], ["code cell 2 fails with ZeroDivisionError: division by zero"]),
        (["x = 1", "# words", "def f(:"], ["code cell 3 fails with SyntaxError"]),
        (["import os", "os._exit(3)", "print(1)"], ["code cell 3 ended its kernel"]),
    ],
)
def test_a_cell_that_fails_is_one_sentence(cells, words):
    given = source.with_parameters(notebook(*cells), {"scale": "smoke"}, "mine.ipynb")
    text = sentence(NotebookError, execute.run, given, "mine.ipynb")
    assert text.startswith("mine.ipynb: ")
    assert all(word in text for word in words), text


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A tree in which the target ran, without PYTHONPATH but for libraries, and a failing one."""
    tree = copy_tree(tmp_path_factory.mktemp("notebooks") / "tree")
    store(tree / "notebooks" / "failing.ipynb", "x = 1", "raise ValueError('of mine')")
    return tree, make(tree, "--keep-going", "--", "notebooks")


def make(tree, *arguments):
    command = (sys.executable, "-m", "snakemake", "-c1", "--config", "scale=smoke")
    return conftest.run(*command, *arguments, cwd=tree)


def pages(tree):
    return tree / "results" / "notebooks"


@pytest.mark.slow
def test_the_target_makes_every_page_but_that_of_the_failing_notebook(built):
    tree, done = built
    assert done.returncode == 1
    assert sorted(p.name for p in pages(tree).iterdir()) == [f"{name}.html" for name in NAMES]
    sentence = (
        "gradleak: notebooks/failing.ipynb: code cell 3 fails with ValueError: of mine; open the "
        "notebook in Jupyter, mend the cell, and run all cells."
    )
    assert done.stderr.count(sentence) == 1 and "Traceback" not in done.stderr
    log = (tree / "results/logs/notebooks/failing.log").read_text()
    assert sentence.removeprefix("gradleak: ") in log


@pytest.mark.parametrize("name", OURS)
@pytest.mark.slow
def test_a_page_is_whole_and_asks_for_nothing(built, name):
    file = pages(built[0]) / f"{name}.html"
    tree = parse(file.read_text())
    assert not tree.all("script") and not tree.all("link") and not tree.all("iframe")
    images = tree.all("img")
    assert images and all(image["src"].startswith("data:image/png") for image in images)
    for image in images:
        assert "picture" in image["alt"]
    assert any(" dB" in image["alt"] for image in images)
    assert not [tag for tag in tree.all("pre") if tag.get("class") == "stderr"]
    for link in tree.all("a"):
        target = link["href"]
        assert target.startswith("../../docs/")
        assert (ROOT / target.removeprefix("../../")).is_file()


@pytest.mark.slow
def test_a_notebook_runs_to_the_same_bytes_and_again_only_after_a_change(built):
    tree, _ = built
    file = pages(tree) / "fedkl.html"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    again = make(tree, "--", "results/notebooks/fedkl.html")
    assert "Nothing to be done" in again.stdout + again.stderr
    code = tree / "src/gradleak/attacks/closed_form/keylock_inversion.py"
    code.write_text(code.read_text().replace("CONDITION =", "UNUSED = 1\nCONDITION =", 1))
    assert "UNUSED" in code.read_text()
    again = make(tree, "--", "results/notebooks/fedkl.html")
    assert again.returncode == 0, again.stderr
    assert "1 of 1 jobs done" in again.stdout + again.stderr
    assert hashlib.sha256(file.read_bytes()).hexdigest() == digest


def test_a_signal_ends_the_kernel_too(tmp_path):
    """Nothing of the page is left, nor a process, nor a folder of the kernel's."""
    started = tmp_path / "started"
    path = store(
        tmp_path / "a.ipynb",
        f"import os, pathlib, time\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))",
        "time.sleep(600)",
    )
    code = (
        "from gradleak.runtime import signals\n"
        "from gradleak.reporting.notebooks import execute, source\n"
        "with signals.clean_up_on_signals():\n"
        f"    execute.run(source.read({str(path)!r}), 'a')"
    )
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    job = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE)
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
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_a_page_opens_without_errors_and_fits_its_window(browser, built, name, width, scheme):
    tab = browser.open(pages(built[0]) / f"{name}.html", width=width, scheme=scheme)
    try:
        assert tab.problems() == []
        asked = [url for url in tab.requests() if not url.startswith("data:")]
        assert [url.rpartition("/")[2] for url in asked] == [f"{name}.html"]
        assert tab.js("document.documentElement.scrollWidth") == width
        broken = "Array.from(document.images).filter(i => !i.complete || !i.naturalWidth).length"
        assert tab.js(broken) == 0
        if name in OURS and width == WIDTHS[0]:  # on a telephone pictures keep their size
            narrower = "Array.from(document.images).filter(i => i.width < i.getAttribute('width'))"
            assert tab.js(f"{narrower}.length") == 0
            wrapped = "Array.from(document.querySelectorAll('pre.columns'))"
            wrapped += ".filter(p => getComputedStyle(p).whiteSpace !== 'pre')"
            assert tab.js(f"{wrapped}.length") == 0
        if not axe_missing():
            assert tab.axe() == []
    finally:
        tab.close()
