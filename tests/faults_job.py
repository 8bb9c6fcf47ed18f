"""One job of a toy rule, as Snakemake would start it, in a process of its own."""

import os
import subprocess
import sys
import textwrap

from conftest import PACKAGES, ROOT

BEGIN = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from snakemake.iocontainers import Namedlist
from gradleak.runtime.artifacts import atomic
from gradleak.runtime.job import job

given = SimpleNamespace(
    rule="toy", log=Namedlist(["results/logs/toy.log"]), threads=1, input=Namedlist([]),
    output=Namedlist(["results/toy.csv"]), wildcards=Namedlist(fromdict={"model": "m"}),
    params=Namedlist(fromdict={}), config={"images": "embedded", "scale": "smoke"},
)
with job(given) as log:
"""
# Writes half of the output, says so, and goes on only when told to.
SLOW = """
with atomic("results/toy.csv") as temporary:
    temporary.write_text("half")
    print("half", flush=True)
    sys.stdin.readline()
    temporary.write_text("whole")
"""
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(PACKAGES), "PATH": "/usr/bin:/bin"}


def code(body, first=""):
    """The script of a job with that body, and what it does first."""
    return first + BEGIN + textwrap.indent(textwrap.dedent(body), "    ")


def run(folder, body, prefix=(), first="", **more):
    """Run a job to its end."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", code(body, first)],
        cwd=folder,
        env=ENVIRONMENT | more,
        capture_output=True,
        text=True,
        check=False,
    )


def begin(folder, body=SLOW, prefix=(), whole=None, **more):
    """Start a job, or a `whole` script; returns when it has written half of its output."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", whole or code(body)],
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )
    assert process.stdout.readline() == "half\n", process.stderr.read()
    return process


# Imports as a script of the pipeline does; `slow` stands for what takes seconds.
IMPORTING = """
import sys
sys.path.insert(0, {scripts!r})
import _package
import slow
"""
# Says that it began, and goes on only when told to.
IMPORTED = """
import sys
print("half", flush=True)
sys.stdin.readline()
"""


def begin_imports(folder, **more):
    """Start a job; returns while it imports."""
    (folder / "slow.py").write_text(IMPORTED)
    body = IMPORTING.format(scripts=str(ROOT / "workflow/scripts"))
    return begin(folder, whole=body, **more)


def finish(process):
    """Let a job that waits go on to its end: status, and what it said to errors."""
    _, errors = process.communicate("\n", timeout=60)
    return process.returncode, errors
