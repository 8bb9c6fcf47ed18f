"""Runs a worker and reads what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.artifacts import read_tensors
from gradleak.errors import ArtifactError

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Measurement:
    """What one worker measured.

    Attributes
    ----------
    seconds
        Best of all repeats.
    layers
        Best seconds of each layer, if the task tells them.
    mib
        Peak resident memory above what was resident right after the imports.
    arrays, facts
        What the task returned.
    """

    seconds: float
    layers: dict[str, float]
    mib: float
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


def environment(threads: int) -> dict[str, str]:
    """Environment of a process that finds this package first and uses `threads` BLAS threads."""
    old = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(PACKAGE_ROOT), *([old] if old else [])])
    limits = {name: str(threads) for name in THREAD_VARIABLES}
    return {**os.environ, **limits, "PYTHONPATH": path}


def last_line(text: str) -> str:
    """Last line of a program's output that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no message")


def measure(task: str, case_path: str, *, repeats: int, threads: int) -> Measurement:
    """Run one of `gradleak.benchmarks.worker.TASKS` in a fresh process.

    Raises
    ------
    ArtifactError
        If the process ends with an error, for instance for want of memory.
    """
    with tempfile.TemporaryDirectory(prefix="gradleak-speed-") as folder:
        out = str(Path(folder) / "result.safetensors")
        arguments = [task, case_path, out, str(repeats)]
        _output("gradleak.benchmarks.worker", arguments, threads=threads, what=f"'{task}'")
        arrays, facts = read_tensors(out)
    seconds, layers = facts.pop("seconds"), facts.pop("layers")
    best = {name: min(entry[name] for entry in layers) for name in layers[0]}
    return Measurement(min(seconds), best, facts.pop("mib"), arrays, facts)


def answer(module: str, arguments: Sequence[str], *, threads: int) -> dict[str, Any]:
    """Run a module of this package in a fresh process; the JSON on its last line.

    Raises
    ------
    ArtifactError
        If the process ends with an error.
    """
    printed = _output(module, arguments, threads=threads, what=module)
    found: dict[str, Any] = json.loads(last_line(printed))
    return found


def _output(module: str, arguments: Sequence[str], *, threads: int, what: str) -> str:
    """Run a module of this package in a fresh process; what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment(threads),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ArtifactError(
            f"Speed measurement {what} ended with status {done.returncode} "
            f"({last_line(done.stderr)}); free some GB of memory and ask for the table again."
        )
    return done.stdout


def alternately(
    module: str, jobs: Mapping[str, Mapping[str, Any]], *, rounds: int, threads: int
) -> dict[str, dict[str, Any]]:
    """Fastest answer of each job, by its ``seconds``; jobs take turns, so that all meet one load.

    Parameters
    ----------
    module
        See `answer`; it is given a job as JSON.
    jobs
        What each is to do.
    rounds
        Runs of each.
    threads
        Of each process.
    """
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for name, job in jobs.items():
            found = answer(module, [json.dumps(job)], threads=threads)
            if name not in best or found["seconds"] < best[name]["seconds"]:
                best[name] = found
    return best
