"""The wheel in an environment of its own, with what it requires and nothing else; a release."""

import json
import os
import re
import sys
import tomllib
import venv
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement

import audit_samples
from conftest import PACKAGES, ROOT, run
from gradleak import __version__, cli
from gradleak_audit import from_config
from gradleak_audit.run import Audited

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NETWORK = """
from torch import nn

def Net(classes=10):
    layers = nn.Conv2d(3, 4, 3, 2, 1), nn.Sigmoid(), nn.Flatten(), nn.Linear(1024, classes)
    return nn.Sequential(*layers)
"""


def required():
    """Installed distributions that the package requires, directly or not, without extras."""
    seen, left = {}, [*map(Requirement, PROJECT["dependencies"])]
    while left:
        one = left.pop()
        if (one.name, *one.extras) in seen:
            continue
        found = seen[one.name, *one.extras] = distribution(one.name)
        for more in map(Requirement, found.requires or ()):
            for extra in ("", *one.extras):
                if more.marker is None or more.marker.evaluate({"extra": extra}):
                    left.append(more)
    return seen.values()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Run a program of a fresh environment with the wheel, in an empty folder without a checkout.

    The packages it requires are links to those of this environment.
    """
    folder = tmp_path_factory.mktemp("install")
    venv.create(folder / "venv", symlinks=True)
    programs, work = folder / "venv/bin", folder / "work"
    work.mkdir()
    pip = sys.executable, "-m", "pip", "--quiet"
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    options = "install", "--no-deps", "--no-index"
    run(*pip, "--python", programs / "python", *options, wheel, check=True)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    for found in required():
        for name in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(found.locate_file(name))

    def start(program, *arguments):
        return run(programs / program, *arguments, cwd=work, env={"OMP_NUM_THREADS": "1"})

    return start, work


EVERY_MODULE = """
import json, pkgutil, sys
from importlib import import_module
import gradleak, gradleak_audit
missing = {}
for package in (gradleak, gradleak_audit):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".", missing.get):
        try:
            if not found.name.endswith("__main__"):
                import_module(found.name)
        except ImportError as error:
            missing[found.name] = f"{type(error).__name__}: {error}"
print(json.dumps(missing))
"""


def test_without_extras_all_can_be_imported_but_what_names_its_extra(installed):
    start, _ = installed
    done = start("python", "-c", EVERY_MODULE)
    assert done.returncode == 0, done.stderr
    missing = json.loads(done.stdout)
    sentence = re.compile(
        r"MissingExtra: (\w+) is not installed; it comes with gradleak's extra '(\w+)': pip "
        r'install "\.\[\2\]" in a checkout, or "FILE\.whl\[\2\]"\.'
    )
    found = {module: sentence.fullmatch(words) for module, words in missing.items()}
    assert all(found.values()), {module: missing[module] for module in found if not found[module]}
    named = {one.groups() for one in found.values()}
    assert named >= {("matplotlib", "pipeline"), ("nbclient", "notebooks")}
    for package, extra in named:
        wanted = {Requirement(one).name for one in PROJECT["optional-dependencies"][extra]}
        assert package in wanted, f"{package} is not in the extra {extra}"
    homes = ("plotting", "pipeline", "reporting")
    allowed = (*(f"gradleak.{home}" for home in homes), "gradleak_audit.rules")
    assert [name for name in missing if not name.startswith(allowed)] == []


THREE_LINES = """
import torch, gradleak
model = torch.nn.Sequential(torch.nn.Conv2d(3, 12, 4, 2, 2), torch.nn.LeakyReLU(),
                            torch.nn.Flatten(), torch.nn.Linear(300, 10))
images = torch.rand(1, 3, 8, 8)
shared = gradleak.capture(model, images, [3])
found = gradleak.invert(shared, model, (3, 8, 8))
assert gradleak.score(images, found)["psnr"].item() > 30
gradleak.rank(model, (3, 8, 8)), gradleak.defend(shared, model, "gaussian_noise", level=0.1)
gradleak.check(shared, model, (3, 8, 8)), gradleak.audit, gradleak.poison
"""


def test_the_library_runs_without_extras_and_wrong_arguments_are_one_sentence(installed):
    start, work = installed
    done = start("python", "-W", "error", "-c", THREE_LINES)
    assert done.returncode == 0, done.stderr
    done = start("gradleak", "audit", "none.py:Net", "--input", "3,32,32")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"gradleak audit: network: none.py does not exist; .*\.\n", done.stderr)
    assert start("gradleak", "--version").stdout == f"gradleak {__version__}\n"
    assert list(work.iterdir()) == []


def test_recorded_claims_are_told_without_a_checkout(installed):
    start, work = installed
    done = start("gradleak", "claim", "copa.table1.v1.c")
    assert done.returncode == 0, done.stderr
    for told in ("CNN3 Variant 1, c(M), c: -2267.", "reproduced", "Table 1"):
        assert told in done.stdout
    done = start("gradleak", "claim", "rgap.weight_constraints.rgap_lenet")
    assert "docs/results/rgap/parts/rgap_draws/evidence.zip: results/rank/" in done.stdout
    listed = start("gradleak", "claim", "--list").stdout.splitlines()
    assert len(listed) > 500 and any("copa.table1.v1.c" in line for line in listed)
    done = start("gradleak", "claim", "copa.table1.v1.d")
    assert (done.returncode, done.stdout) == (2, "") and "copa.table1.v1.c" in done.stderr
    assert list(work.iterdir()) == []


@pytest.mark.slow
def test_an_audit_runs_without_extras(installed):
    start, work = installed
    (work / "mynet.py").write_text(NETWORK)
    words = "audit mynet.py:Net --input 3,32,32 --scale smoke --count 1 --batches 1"
    done = start("gradleak", *words.split())
    assert done.returncode == 0, done.stderr
    *_, page = done.stdout.splitlines()
    assert page == "Page: audit/report.html"
    found = json.loads((work / "audit/audit.json").read_text())
    assert found["verdict"]["sentence"] in done.stdout and found["setting"]["count"] == 1
    assert f"gradleak {words}" in (work / "audit/report.html").read_text()


@pytest.fixture
def audits(monkeypatch, tmp_path):
    """Calls of audits, which are not run: they find what the samples of tests hold."""
    calls = []

    def entry(*given):
        calls.append(given)
        return Audited(audit_samples.audit(), audit_samples.pictures(), {})

    monkeypatch.setattr(from_config, "run_entry", entry)
    monkeypatch.chdir(tmp_path)
    return calls


def test_options_are_keys_of_an_entry_and_a_limit_decides_the_exit_status(audits, capsys):
    words = "audit my.py:Net --input 3,8,8 --batches 2,4 --std 0.5 --images mine --weights w.pth"
    words += " --loss raw_logits --mode training --arguments a=1 b=c --scale smoke --output out/x"
    assert cli.main(words.split()) == 0
    ((name, entry, *more),) = audits
    assert (name, more) == ("Net", [None, "smoke", "cpu"])
    network = {"file": "my.py", "factory": "Net", "arguments": {"a": 1, "b": "c"}}
    wanted = {"network": network, "input": (3, 8, 8), "batches": [2, 4], "std": 0.5}
    wanted |= {"samples": {"folder": "mine"}, "weights": "w.pth", "loss": "raw_logits"}
    assert entry.items() >= (wanted | {"mode": "training", "seed": 0, "count": None}).items()
    said, sentence = capsys.readouterr(), audit_samples.audit().verdict.sentence
    first, quick, page = said.out.splitlines()
    assert (first, page, said.err) == (sentence, "Page: out/x/report.html", "")
    assert (
        quick == "At scale smoke this is a quick look, and no evidence; leave --scale out for one."
    )
    common = ["audit", "torchvision:resnet18", "--input=3,8,8"]
    for options, status in (
        (["--limit", "0"], 1),
        (["--limit", "1"], 0),
        (["--baseline", "out/x/audit.json"], 0),
    ):
        assert cli.main([*common, *options]) == status
        said = capsys.readouterr()
        assert ("more than limit" in said.err) == (status == 1)
        assert "Page: audit/report.html" in said.out and "quick look" not in said.out
    assert audits[-1][1]["network"] == {"torchvision": "resnet18", "arguments": {}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("audit my.py:Net", "required: --input"),
        ("audit my.py --input 3,8,8", "my.py names none; give a file and a name"),
        ("audit my.py:Net --input 3,8", "give C,H,W of one image, as in 3,32,32, not 3,8"),
        ("audit my.py:Net --input 3,x,8", "input.1: 'x' is not allowed"),
        ("audit my.py:Net --input 3,8,8 --limit 2", "limit: 2 is not allowed"),
        ("audit my.py:Net --input 3,8,8 --batches 4,1", r"batches: [4, 1] must grow"),
        ("audit my.py:Net --input 3,8,8 --arguments a", "a is not KEY=VALUE"),
        ("audit my.py:Net --input 3,8,8 --baseline none", "none cannot be read"),
        (
            "audit my.py:Net --input 3,8,8 --output file",
            "output: file is not a folder; give another",
        ),
        ("audit my.py:Net --input 3,8,8 --output file/x", "output: file/x cannot be made a folder"),
        ("adit", "invalid choice: 'adit'"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(audits, capsys, tmp_path, words, said):
    (tmp_path / "file").touch()
    try:
        status = cli.main(words.split())
    except SystemExit as ended:
        status = ended.code
    found = capsys.readouterr()
    assert (status, found.out, audits) == (2, "", [])
    assert said in found.err and found.err.count("\n") == 1 and found.err.endswith(".\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


CUT = """
import sys
from gradleak import cli
from gradleak_audit import command
command.run = lambda given: print("x" * 10**6)
sys.exit(cli.main())
"""


def test_a_closed_pipe_is_no_traceback():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(PACKAGES)}
    command = '"$0" -c "$1" audit my.py:Net --input 3,8,8 | head -c 1'
    done = run("bash", "-c", command, sys.executable, CUT, env=environment)
    assert (done.stdout, done.stderr) == ("x", "")


def test_a_release_has_one_version():
    """The package's own, in the citation and at the top of the changelog, with one date."""
    citation = (ROOT / "CITATION.cff").read_text()
    cited = re.findall(r"^(version|date-released): \"?([^\"\n]+)", citation, re.MULTILINE)
    top = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    version, date = re.fullmatch(r"(\S+) - (unreleased|\d{4}-\d\d-\d\d)", top).groups()
    released = {} if date == "unreleased" else {"date-released": date}
    assert dict(cited) == {"version": __version__, **released} and version == __version__
    image = (ROOT / "profiles/kubernetes/config.yaml").read_text()
    assert f"container-image: gradleak:{__version__}\n" in image
