"""Environments agree with the lock; the lock names no address and has a hash for each file."""

import os
import re
import runpy
import shutil
import sys
import tomllib
import venv
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conftest import ROOT, run

LOCK = ROOT / "requirements.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENTRIES = re.split(r"\n(?=[a-z0-9])", LOCK.read_text(encoding="utf-8").strip())


SCRIPT = (ROOT / "envs/gradleak.post-deploy.sh").read_text(encoding="utf-8")
# What it hands to pip in conda's environment: first the builders, then all.
PIP_PART = re.findall(r"<<'END'\n(.*?\n)END\n", SCRIPT, flags=re.S)
# The only install of the script that may isolate builds, as it builds nothing.
BUILDERS_FIRST = "\"$python\" -m pip install --require-hashes -r /dev/stdin <<'END'"
WRITTEN = ["build.lock", "gradleak.yaml", "gradleak.post-deploy.sh", "Containerfile"]
WRITTEN += ["gradleak.def"]


def pin():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "envs/pin.py")))


def requirements(text):
    """Name, version and marker of each entry of a requirements file, with its hashes."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    found = {}
    for line in joined.splitlines():
        if not line or line.lstrip().startswith("#"):
            continue
        wanted, *hashes = re.split(r" --hash=sha256:(?=[0-9a-f]{64}(?: |$))", line)
        entry = Requirement(wanted)  # raises at anything that is left over
        found[entry.name, str(entry.specifier), str(entry.marker or "")] = sorted(hashes)
    return found


def test_what_is_made_of_the_lock_equals_it():
    made = pin().files()
    assert set(made) == set(WRITTEN)
    for name, text in made.items():
        stored = (ROOT / "envs" / name).read_text(encoding="utf-8")
        assert stored == text, f"run `python envs/pin.py` and commit envs/{name}"


def test_conda_s_list_has_every_entry_of_the_lock_with_its_hashes_and_no_address():
    builders, text = PIP_PART[0], PIP_PART[1].strip()
    assert builders == (ROOT / "envs/build.lock").read_text(encoding="utf-8")
    (builder,) = requirements(builders).items()
    lock = LOCK.read_text(encoding="utf-8")
    assert "://" not in lock
    expected = requirements(lock)
    assert requirements(text) == expected
    assert len(expected) == len(ENTRIES) > 50 and all(expected.values())
    assert builder in expected.items() and builder[0][0] == "setuptools"
    # The comparison can fail: one hash less, one entry less, a hash cut short.
    assert requirements(re.sub(r" --hash=sha256:\w+", "", text, count=1)) != expected
    assert requirements("\n".join(text.splitlines()[1:])) != expected
    assert requirements(text[:-1]) != expected


def test_every_install_asks_for_hashes():
    places = ["Makefile", *(f"envs/{name}" for name in WRITTEN[2:]), ".ci/run"]
    found = 0
    for place in places:
        for line in (ROOT / place).read_text(encoding="utf-8").splitlines():
            command = line.strip()
            called = re.search(r"pip (install|download)\b|\$\(PIP\)", command)
            if not called or command.startswith(("#", "PIP =")):
                continue
            found += 1
            own = command.endswith("--no-deps --no-build-isolation -e .")
            assert own or "--require-hashes" in command, f"{place}: {command}"
            builders = "build.lock" in command or command == BUILDERS_FIRST
            whole = "--no-deps --no-build-isolation --require-hashes" in command
            assert own or builders or whole, f"{place}: {command}"
    assert found >= 11


def test_the_container_takes_the_lock_and_nothing_else():
    lines = (ROOT / "envs/Containerfile").read_text(encoding="utf-8").splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith(("COPY", "ADD"))]
    assert copied == [["requirements.lock", "envs/build.lock"]]
    context = (ROOT / "envs/Containerfile.dockerignore").read_text(encoding="utf-8").split()
    assert context == ["*", "!requirements.lock", "!envs/build.lock"]
    (base,) = [line for line in lines if line.startswith("ARG BASE=")]
    assert base.endswith(f"python:{pin().PYTHON}-slim")
    known = {"ARG", "FROM", "COPY", "RUN", "ENV"}
    joined = "\n".join(lines).replace("\\\n", "")
    words = [line.split()[0] for line in joined.splitlines() if not line.startswith("#")]
    assert set(words) == known and words.index("FROM") > words.index("ARG")


def test_this_environment_has_the_locked_versions():
    checked = 0
    for entry in ENTRIES:
        wanted = Requirement(entry.split("\n")[0].removesuffix("\\").strip())
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        found = "absent"
        with suppress(PackageNotFoundError):
            found = version(canonicalize_name(wanted.name))
        assert found in wanted.specifier, f"{wanted.name} is {found}; run `make setup`"
        checked += 1
    assert checked > 100


def test_the_lock_has_whatever_its_packages_need():
    """It is installed without a look at what they need; pip's check leaves out their extras."""
    done = run(sys.executable, "-m", "pip", "check")
    assert done.returncode == 0, done.stdout
    locked = {canonicalize_name(Requirement(e.split("\n")[0].rstrip("\\")).name) for e in ENTRIES}
    seen, left = set(), [("gradleak", extra) for extra in PROJECT["optional-dependencies"]]
    while left:
        name, extra = left.pop()
        for needed in map(Requirement, requires(name) or ()):
            one = canonicalize_name(needed.name)
            if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
                continue
            assert one in locked, f"{name}[{extra}] needs {one}"
            more = {(one, own) for own in ("", *needed.extras)} - seen
            seen |= more
            left += more
    assert ("sqlalchemy", "asyncio") in seen and len(seen) > 150


def pip(folder, *arguments):
    done = run(folder / "bin/python", "-m", "pip", "install", "--quiet", *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11) or not sys.platform.startswith("linux"),
    reason="images and conda's file are for Python 3.11 on Linux",
)
def test_the_steps_of_the_container_and_conda_s_list_resolve(tmp_path, monkeypatch):
    """In a fresh environment, with hashes; every wheel is fetched, none is installed."""
    env, report = tmp_path / "env", tmp_path / "report.json"
    venv.create(env, with_pip=True)
    pip(env, "--require-hashes", "-r", ROOT / "envs/build.lock")
    for name, value in {"DRY_RUN": 1, "IGNORE_INSTALLED": 1, "QUIET": 1, "REPORT": report}.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))

    def hashes():
        return sorted(re.findall(r'"sha256": "(\w+)"', report.read_text()))

    def conda(script):
        path = tmp_path / "env.post-deploy.sh"
        path.write_text(script, encoding="utf-8")
        return run("bash", path)

    done = conda(SCRIPT)
    assert done.returncode == 0, done.stderr
    found = hashes()
    assert len(found) > 100
    # The second step of the image.
    pip(env, "--no-deps", "--no-build-isolation", "--require-hashes", "-r", LOCK)
    assert hashes() == found
    for part in PIP_PART:
        wrong = re.sub(r"sha256:\w{9}", "sha256:012345678", part)
        done = conda(SCRIPT.replace(part, wrong))
        assert done.returncode != 0 and "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_says_what_it_would_run_without_internet(tmp_path):
    def commands(*arguments):
        done = run("make", "-n", "-B", "-C", ROOT, *arguments, check=True)
        return [line for line in done.stdout.splitlines() if " pip " in line]

    offline = commands("setup", "WHEELS=a folder")
    assert len(offline) == 3
    assert all('--no-index --find-links "a folder"' in line for line in offline)
    online = commands("setup")
    assert len(online) == 3 and not any("--no-index" in line for line in online)


DIGITS = "data/digits-test.safetensors"
APPTAINER = """#!/bin/sh
# Stands in for apptainer: notes the image, and runs the command without it,
# with the Python that the image would hold.
if [ "$1" = --version ]; then echo "apptainer version 1.3.0"; exit; fi
while [ "$1" != exec ]; do shift; done
while [ "${1##*.}" != sif ]; do shift; done
echo "$1" >> images.txt
shift
PATH={python}:$PATH exec "$@"
"""


def test_apptainer_is_given_the_image_for_every_job(tree, snakemake, monkeypatch):
    """No container runs here: what is tried is what Snakemake asks for."""
    programs = tree / "programs"
    programs.mkdir()
    python = str(Path(sys.executable).parent)
    (programs / "apptainer").write_text(APPTAINER.replace("{python}", python))
    (programs / "apptainer").chmod(0o755)
    (tree / "envs/gradleak.sif").write_text("")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    snakemake(tree, "--sdm", "apptainer", "--", DIGITS)
    assert (tree / DIGITS).is_file()
    assert (tree / "images.txt").read_text().split() == ["envs/gradleak.sif"]


CONDA = """#!/bin/sh
# Stands in for conda; the last argument of `env create` is the folder of the new environment.
case "$1 $2" in
"--version ") echo "conda 25.1.0" ;;
"info --json") echo '{"conda_prefix": "BASE", "platform": "linux-64"}' ;;
"clean -y") ;;
"config --get") echo '{"get": {"channel_priority": "strict"}}' ;;
"env create") for last; do :; done; mkdir -p "$last/bin" && cp BASE/python "$last/bin/python" ;;
*) exit 1 ;;
esac
"""
# The Python of that environment: notes what pip is asked to install and breaks off at one of
# these calls, if a file says which; notes whether a job was there.
PYTHON = """#!/bin/sh
case "$*" in
"-m pip install "*)
    echo "> $*" >> BASE/asked
    cat >> BASE/asked
    test "$(grep -c "^> " BASE/asked)" != "$(cat BASE/broken)" ;;
*) touch BASE/ran; exec OURS "$@" ;;
esac
"""


@pytest.fixture
def conda(tmp_path, monkeypatch):
    base = tmp_path / "conda"
    activate = 'export PATH="$1/bin:$PATH"\n'
    texts = {"bin/conda": CONDA, "python": PYTHON, "bin/activate": activate, "broken": "none"}
    for name, text in texts.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("BASE", str(base)).replace("OURS", sys.executable))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{base / 'bin'}:{os.environ['PATH']}")
    return base


@pytest.mark.parametrize("activated", [True, False])
def test_conda_s_environment_gets_the_packages_of_the_lock(
    tree, snakemake, conda, monkeypatch, activated
):
    """No conda runs here: what is tried is what Snakemake asks for, with its script run by bash.

    Nor does pip install into whatever Python comes first on the path.
    """
    if not activated:
        (conda / "bin/activate").write_text("return 1\n")
        # Many systems have a python3 and no python.
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    snakemake(tree, "--sdm", "conda", "--", DIGITS)
    assert (tree / DIGITS).is_file() and (conda / "ran").exists() == activated
    _, *asked = re.split(r"^> -m pip install (.*)\n", (conda / "asked").read_text(), flags=re.M)
    hashes = "--require-hashes -r /dev/stdin"
    assert asked[::2] == [hashes, f"--no-deps --no-build-isolation {hashes}"]
    assert asked[1::2] == PIP_PART


@pytest.mark.parametrize("call", [1, 2])
def test_an_environment_whose_packages_fail_is_not_kept(tree, refusal, conda, call):
    (conda / "broken").write_text(f"{call}\n")
    refusal("--sdm", "conda", "--", DIGITS)
    assert re.findall("^> ", (conda / "asked").read_text(), flags=re.M) == ["> "] * call
    assert not (tree / DIGITS).exists() and not (conda / "ran").exists()
    assert [path for path in (tree / ".snakemake/conda").iterdir() if path.is_dir()] == []


def test_the_record_of_a_file_does_not_hold_the_lock_and_no_container_is_asked_for(tree, snakemake):
    """Snakemake notes the environment's text with each of thousands of files."""
    done = snakemake(tree, "--", DIGITS)
    assert "gradleak.sif" not in done.stdout + done.stderr
    records = [p for p in (tree / ".snakemake/metadata").rglob("*") if p.is_file()]
    assert records
    assert max(path.stat().st_size for path in records) < 20_000
