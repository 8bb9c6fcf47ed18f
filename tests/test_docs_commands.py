"""Every command on the pages can be given as it stands, and asks for what a rule makes."""

import json
import os
import re
import shlex
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import docs_commands
from conftest import ROOT, copy_tree, run
from docs_commands import Command, fault, parsed

# Made by a rule that the page tells to add; tests/test_docs_adding.py follows it.
ADDED = {"results/tables/toy_table1.csv"}
# Options with which a call makes no job: it is run as it stands.
NO_JOBS = {"--list-target-rules", "--unlock"}
# Options and values whose call is not run here, and why.
NOT_DRY = {
    "profiles/kubernetes": "needs a storage; tests/test_kubernetes.py has one that stands in",
    "--lint": "make lint runs it",
    "--report": "needs results; tests/test_pipeline.py makes one",
    "--containerize": "the page says why not to",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return folder, docs_commands.commands(folder)


def of_snakemake(commands):
    return [command for command in commands if command.program == "snakemake"]


def test_every_command_can_be_given_as_it_stands(written):
    _, commands = written
    assert len(commands) > 100
    assert [fault(command) for command in commands if fault(command)] == []
    assert {c.program for c in commands} >= set(docs_commands.NOT_RUN)


WRONG = {
    "snakemake --config images=real figures/copa_fig1.pdf": "Unparsable value",
    "snakemake --config scale=smoke all": "name=value pairs",
    "snakemake --configfile seed.yaml all": "--configfile takes all",
    "snakemake --set-threads attack=2 all": "set-threads",
    "snakemake --sdm docker": "invalid choice",
    "make tets": "No rule to make target 'tets'",
    "make tests": "Nothing to be done for 'tests'",
    "python -m gradleak.cleaned": "there is no module gradleak.cleaned",
    "pytest tests/test_contract.py": "there is no tests/test_contract.py",
    "rsync -a results elsewhere": "why rsync is not run",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_command_that_would_fail_is_found(line):
    assert WRONG[line] in fault(Command("page", tuple(shlex.split(line))))


# --- Targets -------------------------------------------------------------------------------------


def listed():
    """Targets of README's table, and of those of the page on targets that have a name."""
    readme = (ROOT / "README.md").read_text().split("## Targets")[1].split("\n## ")[0]
    page = (ROOT / "docs/targets.md").read_text().split("\n## Intermediate files")[0]
    return re.findall(r"(?m)^\| `([^`…]+)` \|", readme + page)


def asked(commands):
    found = defaultdict(list)
    for command in of_snakemake(commands):
        arguments = parsed(command.words)
        case = {"scale": "laptop", "images": "embedded"} | arguments.settings
        targets = [target for target in arguments.targets if target not in ADDED]
        found[f"{case['scale']} {case['images']}"] += targets
    for command in commands:
        if command.program == "make":
            made = [w for w in command.words[1:] if w.startswith(("figures/", "results/"))]
            found["laptop embedded"] += made
    found["laptop embedded"] += listed()
    return found


# Another scale than the run's, and two slips: no rule makes them.
UNMADE = [
    "results/scores/embedded-laptop/copa_pair/cnn3_v3_tanh/none/rgap.csv",
    "alll",
    "figures/copa_figl.pdf",
]


@pytest.fixture(scope="module")
def makes(written):
    """What the rules say of every target that a page asks for, and of wrong ones."""
    cases = asked(written[1])
    cases["smoke embedded"] += UNMADE
    script = ROOT / "tests/docs_targets.py"
    done = run(sys.executable, script, input=json.dumps(cases), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_targets_of_all_commands_are_made_by_a_rule(makes, written):
    cases = asked(written[1])
    assert sum(map(len, cases.values())) > 100 and len(cases) == 4
    unmade = {case: found["unmade"] for case, found in makes.items() if found["unmade"]}
    assert unmade == {"smoke embedded": UNMADE}


def test_paths_of_the_page_on_targets_are_those_of_the_rules(makes):
    """Each path of its table is a rule's, and each rule's path stands there or has a name."""
    page = (ROOT / "docs/targets.md").read_text()
    part = page.split("\n## Intermediate files")[1].split("\n## ")[0]
    table = re.findall(r"^\| `([^`]+)` \| `", part, re.MULTILINE)
    said = {path.replace("{images}", "embedded").replace("{scale}", "smoke") for path in table}
    rules = set(makes["smoke embedded"]["patterns"])
    assert said <= rules
    beside = [path.removesuffix(Path(path).suffix) for path in said]
    named = ("figures/", "results/tables/", "results/benchmarks/", "results/audit/")
    # What this page names one by one: `{result}` is the name of an entry.
    single = {path for path in rules if "{" not in path} | {
        "data/raw/{dataset}/MD5SUMS",
        "results/inconspicuous/embedded-smoke/{model}.csv",
    }
    assert [path for path in rules - single if not path.startswith((*named, *beside))] == []


# --- Dry runs ------------------------------------------------------------------------------------


def dry_runs(commands):
    """Targets of calls by their options, so that calls which differ in targets alone are one."""
    found = defaultdict(list)
    for command in of_snakemake(commands):
        targets = parsed(command.words).targets
        options = [word for word in command.words[1:] if word not in {*targets, "--", "-n"}]
        if set(options) & set(NOT_DRY):
            continue
        alone = bool(set(options) & NO_JOBS)
        if targets or alone:
            group = found[tuple(options)]
            group += [target for target in targets if target not in {*ADDED, *group}]
    return found


@pytest.mark.slow
def test_every_call_of_snakemake_runs_dry(written, tmp_path, snakemake, monkeypatch):
    folder, commands = written
    tree = copy_tree(tmp_path / "tree")
    for path in folder.glob("*.yaml"):
        shutil.copy(path, tree)
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("SNAKEMAKE_OUTPUT_CACHE", str(tmp_path / "cache"))
    # Snakemake asks for its version before it plans.
    (tmp_path / "apptainer").write_text("#!/bin/sh\necho apptainer version 1.3.0\n")
    (tmp_path / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    runs = dry_runs(commands)
    assert len(runs) > 10
    failed = []
    for options, targets in runs.items():
        # With the files of each job.
        dry = [] if set(options) & NO_JOBS else ["-n", "--verbose"]
        done = snakemake(tree, *dry, *options, "--", *targets, check=False)
        said = done.stdout + done.stderr
        named = all(target in said for target in targets if "/" in target)
        if done.returncode or (dry and not named):
            failed.append((options, targets, said[-2000:]))
    assert failed == []
