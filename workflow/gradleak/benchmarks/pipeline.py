"""Wall time of the pipeline from empty results, against the CPU time of its processes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gradleak import sidecars
from gradleak.benchmarks.measure import THREAD_VARIABLES, last_line
from gradleak.benchmarks.speed import row
from gradleak.errors import ArtifactError

TREE = ("Snakefile", "config.yaml", "papers", "workflow", "profiles", "envs", "examples")


def plain_environment() -> dict[str, str]:
    """Environment in which Snakemake finds the package of its own copy, and sets threads itself."""
    mine = ("PYTHONPATH", *THREAD_VARIABLES)
    return {key: value for key, value in os.environ.items() if key not in mine}


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Snakemake in a copy of the tree; output and errors as text."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=folder,
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def copy_tree(root: Path, folder: Path, overrides: dict[str, Any]) -> None:
    """Copy the pipeline without its results, with top-level keys of config.yaml replaced."""
    skipped = shutil.ignore_patterns("__pycache__", ".snakemake")
    for name in TREE:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=skipped)
        elif source.is_file():
            shutil.copy2(source, folder / name)
    path = folder / "config.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    settings.update(overrides)
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


@dataclass(frozen=True)
class Run:
    """What a run of the pipeline from empty results took.

    Attributes
    ----------
    wall
        Seconds from the start of Snakemake to its end.
    all_cpu
        User and system seconds of Snakemake and of all its jobs.
    jobs_cpu
        The same of the jobs alone, from the start of each process, imports included.
    jobs
        How many there were.
    """

    wall: float
    all_cpu: float
    jobs_cpu: float
    jobs: int


def run(root: str, target: str, overrides: dict[str, Any], cores: int) -> Run:
    """Make `target` in a copy of the tree that has no results yet.

    Parameters
    ----------
    root
        Folder of the Snakefile.
    target
        File or rule to make.
    overrides
        Top-level keys of config.yaml that differ.
    cores
        Cores that Snakemake may use.

    Raises
    ------
    ArtifactError
        If Snakemake ends with an error.
    """
    with tempfile.TemporaryDirectory(prefix="gradleak-pipeline-") as name:
        folder = Path(name)
        copy_tree(Path(root), folder, overrides)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        done = snakemake(folder, "--cores", str(cores), target)
        wall = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        jobs = sidecars.jobs(folder / sidecars.FOLDER)
    if done.returncode:
        raise ArtifactError(
            f"Snakemake could not make {target} in an empty copy ({last_line(done.stderr)}); make "
            "it here first to see why."
        )
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(wall, cpu, sum(job["cpu_seconds"] for job in jobs), len(jobs))


def wall_time(root: str, target: str, overrides: dict[str, Any], cores: int) -> dict[str, Any]:
    """How many cores a run keeps busy; parameters and errors as of `run`.

    Returns
    -------
    dict
        A row of speed.csv: `ours_s` is the wall time, `reference_s` the sum of user and system
        seconds of Snakemake and all its jobs, so `ratio` is the number of cores kept busy.
    """
    took = run(root, target, overrides, cores)
    note = f"from empty results on {cores} cores: wall time against CPU time of all processes"
    return row(f"pipeline {target}", took.wall, took.all_cpu, note)


def overhead_rows(root: str, target: str, overrides: dict[str, Any]) -> list[dict[str, Any]]:
    """What Snakemake adds to its jobs on two cores, and what the second core gains.

    Parameters and errors are those of `run`.

    Returns
    -------
    list
        Two rows of speed.csv. In the first `reference_s` is the jobs' CPU time divided by two, what
        jobs without gaps between them would take; in the second, the wall time on one core.
    """
    two, one = (run(root, target, overrides, cores) for cores in (2, 1))
    scale = overrides["scale"]
    least = two.jobs_cpu / 2
    overhead = (
        f"{two.jobs} jobs from empty results on 2 cores: wall time against half of the jobs' CPU "
        f"time, imports included; {two.wall / least:.2f} times as long; Snakemake itself took "
        f"{two.all_cpu - two.jobs_cpu:.0f} s of CPU time"
    )
    cores = f"{one.jobs} jobs from empty results: wall time on 2 cores against that on 1"
    return [
        row(f"pipeline {target}, {scale}", two.wall, least, overhead),
        row(f"pipeline {target}, {scale}, cores", two.wall, one.wall, cores),
    ]
