"""Set-up: which Pythons and machines it takes, and what makes it run again."""

import ast
import importlib.util
import re
import shutil
import sys
import tomllib
from itertools import chain, cycle, product
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from conftest import ROOT, copy_tree, run

MAKE = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
SOURCE = ROOT / "envs/supported.py"
SETUP = ("Makefile", "requirements.lock", "envs", "pyproject.toml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def supported():
    spec = importlib.util.spec_from_file_location("supported", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dry(folder, *arguments):
    return run("make", "-n", *arguments, cwd=folder, check=True).stdout


@MAKE
@pytest.mark.parametrize("changed", ["requirements.lock", "envs/build.lock", "pyproject.toml"])
def test_a_change_of_what_is_installed_sets_up_again(tmp_path, changed):
    copy_tree(tmp_path, SETUP)
    ready = tmp_path / ".venv/.ready"
    ready.parent.mkdir()
    ready.touch()
    assert "pip install" not in dry(tmp_path, "setup")
    assert dry(tmp_path, "-W", changed, "setup").count("pip install") == 3
    assert "envs/supported.py --lock" in dry(tmp_path, "lint")


HERE = (3, 11, 7), "Linux", "x86_64", (2, 36)
TAKEN = [HERE, ((3, 12, 0), "Linux", "aarch64", (2, 28)), ((3, 13, 9), "Darwin", "arm64", (14, 0))]
PYTHON_SENTENCE = "gradleak runs on Python 3.11, 3.12 or 3.13, not {}; set PYTHON=python3.11 or"
REFUSED = [
    (((3, 10, 13), *HERE[1:]), PYTHON_SENTENCE.format("3.10.13")),
    (((3, 14, 0), *HERE[1:]), PYTHON_SENTENCE.format("3.14.0")),
    ((HERE[0], "Darwin", "x86_64", (14, 5)), "not on Darwin x86_64 with macOS 14.5: "),
    ((HERE[0], "Darwin", "arm64", (13, 6)), "not on Darwin arm64 with macOS 13.6: "),
    ((HERE[0], "Linux", "x86_64", (2, 17)), "not on Linux x86_64 with glibc 2.17: "),
    ((HERE[0], "Linux", "x86_64", ()), "not on Linux x86_64 with glibc none: "),
    ((HERE[0], "Linux", "ppc64le", (2, 36)), "not on Linux ppc64le with glibc 2.36: "),
    ((HERE[0], "Windows", "AMD64", ()), "not on Windows AMD64: "),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_what_the_lock_has_no_wheels_for_is_refused_in_one_sentence(given, said):
    assert [supported().refusal(*taken) for taken in TAKEN] == [""] * 3
    sentence = supported().refusal(*given)
    assert said in sentence
    assert "\n" not in sentence and sentence.endswith(".") and sentence.count(". ") == 0


def test_this_python_and_machine_are_recognised_and_old_pythons_can_read_the_refusal():
    """Whoever runs these tests was set up, and so must be let pass."""
    done = run(sys.executable, SOURCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ast.parse(SOURCE.read_text(), feature_version=(3, 6))


OLD = """#!/bin/sh
# Stands in for a Python 3.14.
exec {python} -c '
import runpy, sys
sys.version_info = (3, 14, 0)
runpy.run_path(sys.argv[1], run_name="__main__")' "$@"
"""


@MAKE
@pytest.mark.parametrize("target", ["setup", "wheels"])
def test_setup_refuses_before_it_makes_anything(tmp_path, target):
    copy_tree(tmp_path, SETUP)
    other = tmp_path / "python3.14"
    other.write_text(OLD.format(python=sys.executable))
    other.chmod(0o755)
    done = run("make", target, f"PYTHON={other}", "WHEELS=wheels", cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.startswith(PYTHON_SENTENCE.format("3.14.0")), done.stderr
    assert not (tmp_path / ".venv").exists() and not (tmp_path / "wheels").exists()


def test_all_that_name_versions_name_the_same():
    pythons = {".".join(map(str, one)) for one in supported().PYTHONS}
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert {f"3.{minor}" for minor in range(30) if f"3.{minor}" in allowed} == pythons
    words = "Programming Language :: Python :: "
    named = {one.removeprefix(words) for one in PROJECT["classifiers"] if one.startswith(words)}
    assert named == pythons
    for page in ("README.md", "envs/README.md"):
        text = (ROOT / page).read_text()
        assert "Python 3.11, 3.12 or 3.13" in text, page
        assert "glibc 2.28" in text and "macOS 14" in text, page


def test_the_lock_is_tried_on_every_supported_pair_and_one_without_a_wheel_is_named(monkeypatch):
    module, calls = supported(), []
    monkeypatch.setattr(module, "resolve", lambda pair: calls.append(pair) or (0, ""))
    assert module.check_lock() == ""
    assert sorted(calls) == sorted(product(module.PYTHONS, module.PLATFORMS.values()))
    found = cycle([(0, ""), (1, "error: toy==1.0 has no usable wheels")])
    monkeypatch.setattr(module, "resolve", lambda pair: next(found))
    said = module.check_lock()
    assert said.startswith("requirements.lock: Python 3.1") and "toy==1.0 has no usable" in said


def test_without_an_index_the_check_is_left_out_and_uv_finds_a_lock_without_wheels(
    monkeypatch, capsys, tmp_path
):
    index = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple"}
    for name, value in {**index, "UV_NO_CACHE": "1", "UV_HTTP_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)
    assert supported().check_lock() == ""
    assert capsys.readouterr().out.endswith("no package index answered\n")
    # uv itself, without internet: the index is an empty folder.
    module = supported()
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"toy==1.0 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(module, "LOCK", lock)
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "index").as_uri())
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    assert "toy" in module.check_lock()


def test_the_documented_command_locks_every_extra():
    """Without one of them its packages would be dropped from the lock."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (command,) = re.findall(r"`(uv pip compile [^`]+)`", text)
    extras = PROJECT["optional-dependencies"]
    assert set(re.findall(r"--extra (\w+)", command)) == set(extras)
    text = (ROOT / "requirements.lock").read_text()
    locked = set(re.findall("^[a-z0-9][^=; ]*", text, re.MULTILINE))
    asked = PROJECT["dependencies"] + [*chain(*extras.values())]
    assert {Requirement(one).name for one in asked} <= locked
    assert Path(command.split()[-1]).name == "requirements.lock"
