"""Commands that the pages print, as a shell reads them, and what is wrong with one.

Bash itself takes apart quotes, braces, comments and variables; it runs nothing, for no program is
on its path: every call is noted instead.
"""

import contextlib
import importlib.util
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from snakemake.cli import parse_args, parse_config

from conftest import ROOT, run

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
# Place holders, and folders of other machines, by what stands for them here.
STANDS_FOR = {
    "TARGET": "all",
    "FILE": "figures/copa_fig1.pdf",
    "audit/mine": "audit/lenet",
    "embedded-laptop/mine": "embedded-laptop/fedkl_cifar10",
    "mem_mb=N": "mem_mb=1000",
    "mem_mb=...": "mem_mb=1000",
    "/shared/gradleak": str(ROOT),
    "...": "",
    " …": "",
}
NOTE = r"""
command_not_found_handle() { printf '%s\0' "$@" >&3; printf '\n\0' >&3; }
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
    **dict.fromkeys(("cmp", "cp", "rm", "sha256sum", "xargs"), "run by test_docs_reviewing.py"),
    **dict.fromkeys(("cd", "source"), "is the shell's own"),
    "git": "reads the history, which a copy may lack",
    "pytest": "would run tests within a test",
}


@dataclass(frozen=True)
class Command:
    page: str
    words: tuple[str, ...]

    def __str__(self):
        return f"{self.page}: {shlex.join(self.words)}"

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


def commands(folder):
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


# --- What is wrong with a command ----------------------------------------------------------------


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


def _snakemake(command):
    try:
        parsed(command.words)
    except ValueError as error:
        return str(error)
    return ""


def _make(command):
    done = run("make", "-n", "-B", *command.words[1:], cwd=ROOT)
    nothing = "Nothing to be done" in done.stdout  # of a folder with that name
    return done.stderr or done.stdout if done.returncode or nothing else ""


def _python(command):
    first, *rest = command.words[1:]
    lacks = first == "-m" and importlib.util.find_spec(rest[0]) is None
    return f"there is no module {rest[0]}" if lacks else ""


CHECKS = {"snakemake": _snakemake, "make": _make, "python": _python}


def names_a_file(word):
    """Whether a word is a path of the repository; a container image is built on the spot."""
    known = re.fullmatch(r"(envs|tests|profiles|notebooks|workflow)/[\w./-]+(?<!\.sif)", word)
    return bool(known) or word in ("requirements.lock", "pyproject.toml")


def fault(command):
    """What is wrong with a command, as far as it shows without running it; empty if nothing is."""
    missing = [word for word in command.words if names_a_file(word) and not (ROOT / word).exists()]
    if missing:
        return f"{command}: there is no {missing[0]}"
    if command.program not in CHECKS and command.program not in NOT_RUN:
        return f"{command}: say in NOT_RUN why {command.program} is not run"
    said = CHECKS.get(command.program, lambda command: "")(command)
    return f"{command}: {said}" if said else ""
