"""Wall time of the pipeline from empty results, against the CPU time of its processes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from gradleak.benchmarks.measure import last_line
from gradleak.benchmarks.speed import row
from gradleak.errors import ArtifactError

TREE = ("Snakefile", "config.yaml", "workflow", "profiles", "envs")


def _copy(root: Path, folder: Path, overrides: dict[str, Any]) -> None:
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


def wall_time(root: str, target: str, overrides: dict[str, Any], cores: int) -> dict[str, Any]:
    """Make `target` in a copy of the tree that has no results yet.

    Parameters
    ----------
    root
        Folder of the Snakefile.
    target
        File to make.
    overrides
        Top-level keys of config.yaml that the present run has changed.
    cores
        Cores that Snakemake may use.

    Returns
    -------
    dict
        A row of speed.csv: `ours_s` is the wall time, `reference_s` the sum of user and system
        seconds of Snakemake and all its jobs, so `ratio` is the number of cores kept busy.

    Raises
    ------
    ArtifactError
        If Snakemake ends with an error.
    """
    with tempfile.TemporaryDirectory(prefix="gradleak-pipeline-") as name:
        folder = Path(name)
        _copy(Path(root), folder, overrides)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", "--cores", str(cores), target],
            cwd=folder,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=False,
        )
        wall = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise ArtifactError(
            f"Snakemake could not make {target} in an empty copy ({last_line(done.stderr)}); make "
            "it here first to see why."
        )
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    note = f"from empty results on {cores} cores: wall time against CPU time of all processes"
    return row(f"pipeline {target}", wall, cpu, note)
