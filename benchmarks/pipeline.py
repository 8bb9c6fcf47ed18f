"""Wall time of the pipeline from empty results, against the CPU time of its processes."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.runner import Facts, clocked, last_line, row
from gradleak.errors import ArtifactError
from gradleak.runtime import job_records
from gradleak.runtime.job import THREADS
from gradleak.runtime.provenance import TREE

COPIED = (
    "Snakefile", "config.yaml", "papers", "src", "benchmarks", "workflow", "profiles", "envs",
    "examples",
)  # fmt: skip


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Snakemake in a copy of the tree; output and errors as text."""
    # The copy uses its own package, and sets threads itself.
    kept = {k: value for k, value in os.environ.items() if k not in ("PYTHONPATH", *THREADS)}
    command = [sys.executable, "-m", "snakemake", *arguments]
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(command, cwd=folder, env=kept, **options)


def make(folder: Path, *arguments: str) -> None:
    """Make a target, the last argument, in a copy of the tree; `ArtifactError` if that fails."""
    done = snakemake(folder, *arguments)
    if done.returncode:
        raise ArtifactError(
            f"Snakemake could not make {arguments[-1]} in an empty copy "
            f"({last_line(done.stderr)}); make it here first to see why."
        )


def copy_tree(root: Path, folder: Path, overrides: dict[str, Any]) -> None:
    """Copy the pipeline without its results, with top-level keys of config.yaml replaced."""
    for source in map(root.joinpath, COPIED):
        if source.is_dir():
            skipped = shutil.ignore_patterns("__pycache__", ".snakemake")
            shutil.copytree(source, folder / source.name, ignore=skipped)
        elif source.is_file():
            shutil.copy2(source, folder)
    path = folder / "config.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) | overrides
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


@dataclass(frozen=True)
class Run:
    """Cost of a run of the pipeline from empty results."""

    wall: float  # seconds from the start of Snakemake to its end
    all_cpu: float  # user and system seconds of Snakemake and of all its jobs
    jobs_cpu: float  # the same of the jobs alone, imports included
    jobs: int


def run(target: str, overrides: dict[str, Any], cores: int, root: Path = TREE) -> Run:
    """Make a file or rule in a copy of the tree without results, under config `overrides`."""
    with tempfile.TemporaryDirectory(prefix="gradleak-pipeline-") as name:
        folder = Path(name)
        copy_tree(root, folder, overrides)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _, wall = clocked(lambda: make(folder, "--cores", str(cores), target))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        jobs = job_records.jobs(folder / job_records.FOLDER)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(wall, cpu, sum(job["cpu_seconds"] for job in jobs), len(jobs))


def wall_time(target: str, overrides: dict[str, Any], cores: int, root: Path = TREE) -> Facts:
    """Wall time of `run` against all its CPU time; `ratio` is the number of cores kept busy."""
    took = run(target, overrides, cores, root)
    note = f"from empty results on {cores} cores: wall time against CPU time of all processes"
    return row(f"pipeline {target}", took.wall, took.all_cpu, note)


def overhead_rows(target: str, overrides: dict[str, Any], root: Path = TREE) -> list[Facts]:
    """Rows: wall time on two cores against half of the jobs' CPU time, and against one core."""
    two, one = (run(target, overrides, cores, root) for cores in (2, 1))
    least, name = two.jobs_cpu / 2, f"pipeline {target}, {overrides['scale']}"
    overhead = (
        f"{two.jobs} jobs from empty results on 2 cores: wall time against half of the jobs' CPU "
        f"time, imports included; {two.wall / least:.2f} times as long; Snakemake itself took "
        f"{two.all_cpu - two.jobs_cpu:.0f} s of CPU time"
    )
    cores = f"{one.jobs} jobs from empty results: wall time on 2 cores against that on 1"
    first = row(name, two.wall, least, overhead)
    return [first, row(f"{name}, cores", two.wall, one.wall, cores)]
