"""Tasks of `benchmarks.growth` on Snakemake: its own time and memory, without those of the jobs."""

from __future__ import annotations

import os
import resource
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.pipeline import copy_tree
from benchmarks.runner import Facts
from gradleak.errors import ArtifactError
from gradleak.runtime.provenance import TREE

WORKFLOW = """
rule all:
    input:
        expand("out/{{number}}", number=range({jobs})),


rule one:
    output:
        "out/{{number}}",
    shell:
        "touch {{output}}"
"""
PLAN, MAKE = ("-n",), ("--cores", "1")


def planned(jobs: int) -> Facts:
    """`snakemake -n` of independent jobs."""
    return _made(jobs, *PLAN)


def made(jobs: int) -> Facts:
    """Run these jobs one after the other."""
    return _made(jobs, *MAKE)


def planned_here(jobs: int) -> Facts:
    """`snakemake -n all` of this workflow at smoke scale, from empty results."""
    with TemporaryDirectory() as folder:
        copy_tree(TREE, Path(folder), {"scale": "smoke", "images": "embedded"})
        return snakemake(folder, *PLAN, "all")


def _made(jobs: int, *arguments: str) -> Facts:
    with TemporaryDirectory() as folder:
        Path(folder, "Snakefile").write_text(WORKFLOW.format(jobs=jobs), encoding="utf-8")
        return {"n": jobs, **snakemake(folder, *arguments)}


def snakemake(folder: str, *arguments: str) -> Facts:
    """Run Snakemake in this process, in a folder and with the settings of this workflow.

    Returns its own CPU ``seconds``; those of the jobs do not count. ``n`` is the number of jobs
    that a dry run plans.
    """
    from snakemake.cli import main

    profile = ("--profile", str(TREE / "profiles" / "default"))
    place, shown = Path.cwd(), Path(folder, "shown.txt")
    code: Any = None
    before, begin = _children(), time.process_time()
    os.chdir(folder)
    try:
        with shown.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            main([*arguments, *profile, "--quiet", "host", "reason"])
    except SystemExit as done:
        code = done.code
    finally:
        os.chdir(place)
    seconds, text = time.process_time() - begin, shown.read_text(encoding="utf-8")
    if code != 0:
        raise ArtifactError(f"Snakemake ended with status {code} ({text[-300:].strip()}).")
    totals = [line.split()[1] for line in text.splitlines() if line.startswith("total ")]
    facts: Facts = {"seconds": seconds, "jobs_s": _children() - before}
    return facts | ({"n": int(totals[0])} if totals else {})


def _children() -> float:
    """CPU seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
