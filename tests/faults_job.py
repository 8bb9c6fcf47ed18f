"""One job of a toy rule, as Snakemake would start it, in a process of its own."""

import os
import subprocess
import sys
import textwrap

import conftest
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


def code(body, first="", given="", altered=False):
    """The script of a job: what it does `first`, changes what is `given` to it, and its body."""
    begin = f"{first}{BEGIN}{given}\nwith job(given, altered={altered}) as log:\n"
    return begin + textwrap.indent(textwrap.dedent(body), "    ")


def run(folder, body, first="", given="", altered=False, **more):
    script = code(body, first, given, altered)
    return conftest.run(sys.executable, "-c", script, cwd=folder, env=ENVIRONMENT | more)


def begin(folder, body=SLOW, prefix=(), whole=None, **more):
    """Start a job, or a `whole` script; returns when it has written half of its output."""
    line = [*prefix, sys.executable, "-c", whole or code(body)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(line, cwd=folder, env=ENVIRONMENT, text=True, **pipes, **more)
    assert process.stdout.readline() == "half\n", process.stderr.read()
    return process


def begin_imports(folder, **more):
    """Import as a script of the pipeline does; `slow`, which waits, stands for what takes long."""
    slow = 'import sys\nprint("half", flush=True)\nsys.stdin.readline()\n'
    (folder / "slow.py").write_text(slow)
    scripts = str(ROOT / "workflow/scripts")
    whole = f"import sys\nsys.path.insert(0, {scripts!r})\nimport _package\nimport slow\n"
    return begin(folder, whole=whole, **more)


def finish(process):
    """Let a job that waits go on to its end: status, and what it said to errors."""
    _, errors = process.communicate("\n", timeout=60)
    return process.returncode, errors
