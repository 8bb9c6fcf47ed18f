"""Every command on the pages can be given as it stands, and asks for what a rule makes.

Bash itself takes apart quotes, braces, comments and variables; it runs nothing, for no program is
on its path: every call is noted instead.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from snakemake.api import SnakemakeApi
from snakemake.cli import parse_args, parse_config
from snakemake.settings.types import ConfigSettings, OutputSettings, Quietness, ResourceSettings

from conftest import ROOT, copy_tree, run
from gradleak import cli
from gradleak.errors import ConfigError

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "envs/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
# Blocks, with their language; a shell reads those without one, and `sh`.
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = {"", "sh"}
# Code within a line that is a command, or options of Snakemake with their values.
INLINE = re.compile(
    r"(?:export [^;]+; )?(?:snakemake|make|python|pytest|uv|pip|git) [^`]+"
    r"|--(?:cache|config|configfile|cores|default-resources|forcerun|resources|sdm|set-\w+) [^`]+"
)
# Placeholders, and folders of other machines, by what stands for them here.
STANDS_FOR = {
    "TARGET": "all", "FILE": "figures/copa_fig1.pdf", "audit/mine": "audit/lenet",
    "embedded-laptop/mine": "embedded-laptop/fedkl_cifar10", "mem_mb=N": "mem_mb=1000",
    "mem_mb=...": "mem_mb=1000", "/shared/gradleak": str(ROOT), "...": "", " …": "",
}  # fmt: skip
# `cat` writes what a page puts into a file, for the commands after it.
NOTE = r"""
command_not_found_handle() { printf '%s\0' "$@" >&3; printf '\n\0' >&3; }
cat() { while IFS= read -r line; do printf '%s\n' "$line"; done; }
for word in cd source; do eval "$word() { command_not_found_handle $word \"\$@\"; }"; done
PATH=/nowhere
"""


# Programs that no test runs, and why; their files have to be there all the same.
NOT_RUN = {
    **dict.fromkeys(("apptainer", "docker", "podman"), "needs a container engine"),
    "pip": "changes the environment",
    "pip-audit": "needs the network, and is not installed",
    "uv": "needs the network; tests/test_setup.py looks at it",
    **dict.fromkeys(("chgrp", "mkdir"), "prepares a folder that a group shares"),
    "find": "looks through a folder that is not there",
    **dict.fromkeys(("cmp", "cp", "rm", "sha256sum", "xargs"), "run by test_docs_adding.py"),
    **dict.fromkeys(("cd", "source"), "is the shell's own"),
    "git": "reads the history, which a copy may lack",
    "pytest": "would run tests within a test",
}


class Command(NamedTuple):
    page: str
    words: tuple[str, ...]

    @property
    def program(self):
        return self.words[0]


def read(text, folder):
    """Calls that a shell would make for a text, each as its words."""
    for place, here in STANDS_FOR.items():
        text = text.replace(place, here)
    # Options alone are Snakemake's.
    text = re.sub(r"^(?=--)", "snakemake ", text, flags=re.MULTILINE)
    notes = folder / "notes"
    done = run("bash", "-c", f"exec 3>'{notes}'\n{NOTE}{text}", cwd=folder)
    assert not done.stderr, f"bash cannot read {text!r}: {done.stderr}"
    calls = notes.read_text().split("\n\0")
    return [tuple(call.split("\0")[:-1]) for call in calls if call]


def read_pages(folder):
    (folder / "workflow/schemas").mkdir(parents=True)
    found = {}
    for page in PAGES:
        name, text = str(page.relative_to(ROOT)), page.read_text()
        inside = FENCE.sub("", text).replace("\n", " ")
        texts = [block for language, block in FENCE.findall(text) if language in SHELL]
        texts += [span for span in re.findall(r"`([^`]+)`", inside) if INLINE.fullmatch(span)]
        for one in texts:
            for words in read(one, folder):
                found.setdefault(words, Command(name, words))
    return list(found.values())


def parsed(words):
    """Arguments of a call of Snakemake, by its own parser; ValueError where it refuses them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            _, arguments = parse_args(list(words[1:]))
        arguments.settings = parse_config(arguments.config)
    except SystemExit as error:
        if error.code:
            raise ValueError(said.getvalue()) from None
    for path in arguments.configfile or []:
        if Path(path).suffix not in (".yaml", ".yml", ".json"):
            raise ValueError(f"--configfile takes {path}, which is none")
    return arguments


def said_of(program, *words):
    if program == "snakemake":
        try:
            parsed((program, *words))
        except ValueError as error:
            return str(error)
    elif program == "make":
        done = run("make", "-n", "-B", *words, cwd=ROOT)
        nothing = "Nothing to be done" in done.stdout  # of a folder with that name
        return done.stderr or done.stdout if done.returncode or nothing else ""
    elif program == "gradleak":
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
            cli.parser(words[0]).parse_args(words)
        return said.getvalue()
    elif words[0] == "-m" and importlib.util.find_spec(words[1]) is None:
        return f"there is no module {words[1]}"
    return ""


# A path of the repository; a container image is built on the spot.
FILE = re.compile(
    r"(envs|tests|profiles|notebooks|workflow)/[\w./-]+(?<!\.sif)|requirements\.lock|pyproject\.toml"
)


def fault(command):
    """What is wrong with a command, as far as it shows without running it; empty if nothing is."""
    name = f"{command.page}: {shlex.join(command.words)}"
    for word in command.words:
        if FILE.fullmatch(word) and not (ROOT / word).exists():
            return f"{name}: there is no {word}"
    if command.program in NOT_RUN:
        return ""
    if command.program not in ("snakemake", "make", "python", "gradleak"):
        return f"{name}: say in NOT_RUN why {command.program} is not run"
    said = said_of(*command.words)
    return f"{name}: {said}" if said else ""


# Made by a rule that the page tells to add; tests/test_docs_adding.py follows it.
ADDED = {"results/tables/toy_table1.csv"}
# Options with which a call makes no job: it is run as it stands.
NO_JOBS = {"--list-target-rules", "--unlock"}
# Options and values whose call is not run here, and why.
NOT_DRY = {
    "profiles/kubernetes": "needs a storage; tests/test_profiles.py has one that stands in",
    "--lint": "make lint runs it",
    "--report": "needs results; tests/test_pipeline.py makes one",
    "--containerize": "the page says why not to",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return folder, read_pages(folder)


def of_snakemake(commands):
    return [command for command in commands if command.program == "snakemake"]


def test_every_command_can_be_given_as_it_stands(written):
    _, commands = written
    assert len(commands) > 100
    assert [fault(command) for command in commands if fault(command)] == []
    assert {c.program for c in commands} >= set(NOT_RUN)


WRONG = {
    "snakemake --config images=real figures/copa_fig1.pdf": "Unparsable value",
    "snakemake --config scale=smoke all": "name=value pairs",
    "snakemake --configfile seed.yaml all": "--configfile takes all",
    "snakemake --set-threads attack=2 all": "set-threads",
    "snakemake --sdm docker": "invalid choice",
    "make tets": "No rule to make target 'tets'",
    "make tests": "Nothing to be done for 'tests'",
    "gradleak audit mynet.py:Net": "required: --input",
    "python -m gradleak.cleaned": "there is no module gradleak.cleaned",
    "pytest tests/test_contract.py": "there is no tests/test_contract.py",
    "rsync -a results elsewhere": "why rsync is not run",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_command_that_would_fail_is_found(line):
    assert WRONG[line] in fault(Command("page", tuple(shlex.split(line))))


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


# Another scale than the run's, another experiment's model, and two slips: no rule makes them.
UNMADE = [
    "results/scores/embedded-laptop/copa_pair/cnn3_v3_tanh/none/rgap.csv",
    "results/rank/embedded-smoke/rgap_cnn6/rgap_lenet.csv",
    "alll",
    "figures/copa_figl.pdf",
]


def made(target, outputs, ask):
    """True if a rule's pattern has the path, and its experiment lists its model."""
    for output in outputs:
        if match := output.match(target):
            wildcards = SimpleNamespace(**match.groupdict())
            try:
                if hasattr(wildcards, "experiment") and hasattr(wildcards, "model"):
                    ask.sent_model(wildcards)
            except ConfigError:
                return False
            return True
    return False


def rules_say(scale, images, targets):
    quiet = OutputSettings(quiet={Quietness.ALL})
    with SnakemakeApi(quiet) as api:
        flow = api.workflow(
            resource_settings=ResourceSettings(cores=1),
            config_settings=ConfigSettings(config={"scale": scale, "images": images}),
            snakefile=Path("Snakefile"),
        )._workflow
        names = {rule.name for rule in flow.rules}
        outputs = [output for rule in flow.rules for output in rule.output]
        unmade = [
            t for t in targets if t not in names and not made(t, outputs, flow.globals["ASK"])
        ]
        patterns = {re.sub(r"\{(\w+),(?:[^{}]|\{[^{}]*\})*\}", r"{\1}", str(o)) for o in outputs}
    return {"unmade": unmade, "patterns": sorted(patterns)}


@pytest.fixture(scope="module")
def makes(written):
    """What the rules say, in a process of its own, of every target of a page and of wrong ones."""
    cases = asked(written[1])
    cases["smoke embedded"] += UNMADE
    done = run(sys.executable, __file__, input=json.dumps(cases), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_targets_of_all_commands_are_made_by_a_rule(makes, written):
    cases = asked(written[1])
    assert sum(map(len, cases.values())) > 100
    assert set(cases) == {
        *("smoke embedded", "smoke real", "laptop embedded", "laptop real"),
        *("night real", "paper real"),
    }
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


if __name__ == "__main__":
    given = json.load(sys.stdin)
    json.dump({case: rules_say(*case.split(), given[case]) for case in given}, sys.stdout)
