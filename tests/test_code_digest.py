"""Code hashes: what reruns jobs, and what does not."""

import ast
import re
import shutil

import pytest

from gradleak.runtime import code_digest, provenance
from gradleak.runtime.code_digest import digest


def forget():
    for name in ("module_path", "_source", "_digest", "dependencies", "code_hash"):
        getattr(provenance, name).cache_clear()


@pytest.fixture
def hashed(tmp_path, monkeypatch):
    """Code hashes of modules, with a folder in the place of the one with all packages."""
    monkeypatch.setattr(provenance, "FOLDERS", dict.fromkeys(provenance.FOLDERS, tmp_path))

    def code_hash(*modules):
        forget()
        return provenance.code_hash(*modules)

    yield code_hash
    monkeypatch.undo()
    forget()


@pytest.fixture
def package(tmp_path, hashed):
    folder = tmp_path / "gradleak"
    folder.mkdir()
    high = "from gradleak.low import X\n\ndef f():\n    return X\n"
    texts = {"__init__": "", "low": '"""Doc."""\nX = 1\n', "high": high, "other": "X = 2\n"}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return folder, hashed


def test_code_hash_follows_imports_and_ignores_comments(package):
    folder, hashed = package
    first = hashed("gradleak.high")
    (folder / "low.py").write_text('"""Other words."""\n# a comment\nX = 1  # another\n')
    (folder / "other.py").write_text("X = 3\n")
    assert hashed("gradleak.high") == first
    (folder / "low.py").write_text("X = 2\n")
    assert hashed("gradleak.high") != first


def test_the_same_name_of_another_module_counts_where_both_run(package):
    folder, hashed = package
    both = "from gradleak.low import X\nfrom gradleak.other import X as Y\n"
    (folder / "high.py").write_text(f"{both}print(X - Y)\n")
    first = hashed("gradleak.high")
    moved = both.replace("low", "new").replace("other", "low")
    (folder / "high.py").write_text(f"{moved}print(X - Y)\n")
    (folder / "low.py").rename(folder / "new.py")
    (folder / "other.py").rename(folder / "low.py")
    assert hashed("gradleak.high") == first
    swapped = "from gradleak.low import X\nfrom gradleak.new import X as Y\nprint(X - Y)\n"
    (folder / "high.py").write_text(swapped)
    assert hashed("gradleak.high") != first


LOOP = "from gradleak.{}\nfor k in progress({}):\n    f(k)"
SAME = {
    "extra": ("from gradleak.errors import require_extra\nrequire_extra('pipeline', 'x')", ""),
    "comment": ("x = 1", "x = 1  # one"),
    "docstring": ("def f():\n    return 1", 'def f():\n    """Return."""\n    return 1'),
    "message": ("raise ValueError('no')", "raise ValueError(f'not {x}, but {y}')"),
    "cause": ("raise E(1) from error", "raise E('one') from error"),
    "assertion": ("assert x", "assert x, 'x is empty'"),
    "progress": (
        LOOP.format("runtime.progress import progress", "range(3), 'steps'"),
        LOOP.format("runtime.bars import progress", "range(3), what='images'"),
    ),
    "log": ("LOG.info('%d', f(x))", "LOG.info('words')"),
    "module moved": ("from gradleak import a\na.f(1)", "from gradleak.b.c import a\na.f(1)"),
    "module renamed": ("from gradleak.b import a\na.f(1)", "from gradleak.b import c\nc.f(1)"),
    "order of imports": (
        "import os\nfrom gradleak.a import f\nfrom gradleak.b import g\ng(f)",
        "from gradleak.z import f\nimport os\nfrom gradleak.b import g\ng(f)",
    ),
    "import within a function": (
        "from gradleak.a import f\ndef g():\n    return f()",
        "def g():\n    from gradleak.a import f\n    return f()",
    ),
    "import of what messages use": (
        "raise ValueError('no')",
        "from gradleak.settings.validation_messages import known\nraise ValueError(known())",
    ),
    "registry": ("A = {'x': 'gradleak.a.b:C'}", "A = {'x': 'gradleak.z:C'}"),
    "only checked": (
        "if TYPE_CHECKING:\n    import a\nx = 1",
        "if TYPE_CHECKING:\n    from gradleak.a import B\nx = 1",
    ),
}
OTHER = {
    "constant": ("x = 1", "x = 2"),
    "exception": ("raise ValueError('no')", "raise TypeError('no')"),
    "cause": ("raise E(1) from error", "raise E(1) from other"),
    "loop": (
        "for k in progress(range(3), 'steps'):\n    f(k)",
        "for k in progress(range(4), 'steps'):\n    f(k)",
    ),
    "condition": ("assert x", "assert y"),
    "string": ("x = 'gradleak: a'", "x = 'gradleak: b'"),
    "class of a registry": ("A = {'x': 'gradleak.a:C'}", "A = {'x': 'gradleak.a:D'}"),
    "module of another package": ("import numpy as np", "import cupy as np"),
    "name of another package": ("from numpy import sin as f", "from numpy import cos as f"),
    "use of an import": ("from gradleak.a import f, g\nf(g)", "from gradleak.a import f, g\ng(f)"),
    "logarithm": ("y = log.base(2)", "y = log.base(3)"),
}


@pytest.mark.parametrize("case", SAME)
def test_words_places_and_names_of_modules_do_not_count(case):
    one, other = map(digest, SAME[case])
    assert (one.digest, len(one.imports)) == (other.digest, len(other.imports))


@pytest.mark.parametrize("case", OTHER)
def test_what_code_does_counts(case):
    found = map(digest, OTHER[case])
    one, other = ((d.digest, [(e.local, e.name) for e in d.imports]) for d in found)
    assert one != other


def test_digests_are_kept_by_content_and_do_without_a_file(tmp_path):
    passed = "from gradleak.a import f as f, g\nfrom gradleak.b import h\n__all__ = ['h']\n"
    assert [entry.local for entry in digest(passed).imports] == ["f", "h"]
    source, folder = tmp_path / "a.py", tmp_path / "kept"
    source.write_text("from gradleak.low import X\nimport os\nprint(X)\n")
    first = provenance._Sources(folder)
    found = first.read(source)
    assert found.imports == (code_digest.Imported("X", "gradleak.low", "X"),)
    first._keep()
    (kept,) = folder.iterdir()
    again = provenance._Sources(folder)
    assert again.read(source) == found and len(again._known) == 1
    source.write_text("from gradleak.high import Y\nprint(Y, 1)\n")
    assert again.read(source).digest != found.digest and len(again._known) == 2
    kept.write_text("{broken")
    assert provenance._Sources(folder).read(source) == again.read(source)
    (tmp_path / "file").write_text("")
    nowhere = provenance._Sources(tmp_path / "file")
    assert nowhere.read(source) == again.read(source)
    nowhere._keep()


def test_an_attack_does_not_depend_on_the_other_one_nor_on_what_is_no_module():
    with pytest.raises(ValueError, match=r"gradleak\.nothing is not a module"):
        provenance.code_hash("gradleak.nothing")
    copa, rgap = (f"gradleak.attacks.closed_form.{name}" for name in ("copa", "rgap"))
    assert copa not in provenance.dependencies(rgap)
    assert rgap not in provenance.dependencies(copa)
    assert "gradleak.operators.gram" in provenance.dependencies(copa)


def test_who_uses_the_packages_functions_depends_on_their_code():
    solver = "gradleak.operators.grid_factor"
    assert solver in provenance.dependencies("benchmarks.studies")
    assert solver not in provenance.dependencies("benchmarks.kept")


# A module that others import by name and from, and what it is to be called.
MOVED, TO = "gradleak.models.losses", "gradleak.client.objectives"


def test_a_module_moved_messages_reworded_and_other_progress_change_no_hash(hashed, tmp_path):
    root = tmp_path / "gradleak"
    shutil.copytree(provenance.ROOT, root)
    shutil.copytree(provenance.TREE / "papers", tmp_path / "papers")
    names = "client.capture attacks.closed_form.rgap attacks.optimization.dlg training.run claims"
    modules = [f"gradleak.{name}" for name in (*names.split(), "scoring.scores")]
    modules.append("papers.copa.figures.samples")
    before = [hashed(module) for module in modules]
    assert MOVED in provenance.dependencies("gradleak.client.capture")
    where = tmp_path.joinpath(*TO.split(".")).with_suffix(".py")
    tmp_path.joinpath(*MOVED.split(".")).with_suffix(".py").rename(where)
    for path in tmp_path.rglob("*.py"):
        code = ast.parse(re.sub(rf"\b{re.escape(MOVED)}\b", TO, path.read_text("utf-8")))
        for node in ast.walk(code):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                node.exc.args[0] = ast.Constant("Something else is wrong; mend it.")
        more = "\nMORE = 1\n" if path.stem in ("progress", "job_records") else ""
        path.write_text(ast.unparse(code) + more, encoding="utf-8")
    assert TO not in provenance.dependencies("gradleak.client.capture")
    after = [hashed(module) for module in modules]
    assert TO in provenance.dependencies("gradleak.client.capture")
    assert after == before
    where.write_text(where.read_text(encoding="utf-8") + "\nMORE = 1\n", encoding="utf-8")
    changed = [hashed(module) for module in modules]
    reach = [TO in provenance.dependencies(module) for module in modules]
    assert [one != other for one, other in zip(before, changed, strict=True)] == reach
    assert set(reach) == {True, False}, "of these modules some reach the changed one, some do not"
