"""Measurements in fresh processes: ``python -m benchmarks.runner TASK OPTIONS``.

A task is a function of a module of this folder, ``module:function``. It takes options as JSON, and
returns facts, printed as JSON: its own `seconds`, and values for the rows.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import psutil

from gradleak.errors import ArtifactError
from gradleak.runtime.job import THREADS
from gradleak.runtime.job_records import peak_mib
from gradleak.runtime.malloc import keep_freed_memory
from gradleak.runtime.provenance import PYTHON_PATH

Facts = dict[str, Any]
Value = TypeVar("Value")
# Ours runs with one thread, as the pipeline's attack jobs do.
OURS_THREADS = 1


def environment(threads: int) -> dict[str, str]:
    """Environment of a process that finds this package first and uses `threads` BLAS threads."""
    path = os.pathsep.join(filter(None, (*PYTHON_PATH, os.environ.get("PYTHONPATH"))))
    return {**os.environ, **dict.fromkeys(THREADS, str(threads)), "PYTHONPATH": path}


def last_line(text: str) -> str:
    """Last non-empty line of a program's output."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no message")


def measure(task: str, *, threads: int = OURS_THREADS, **options: Any) -> Facts:
    """Run a task in a fresh process; `ArtifactError` if it fails, for instance for lack of memory.

    Returns the task's facts, arrays as lists, with `mib`, the largest growth of the process beyond
    its imports, and `peak_mib`, its highest resident memory.
    """
    command = [sys.executable, "-m", "benchmarks.runner", task, json.dumps(options)]
    shown: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
    done = subprocess.run(command, env=environment(threads), **shown)
    if done.returncode:
        raise ArtifactError(
            f"Speed measurement {task} ended with status {done.returncode} "
            f"({last_line(done.stderr)}); free some GB of memory and ask for the table again."
        )
    facts: Facts = json.loads(last_line(done.stdout))
    return facts


def in_turns(
    task: str, sides: Sequence[Any], *, rounds: int, threads: int = OURS_THREADS, **options: Any
) -> list[Facts]:
    """Fastest run of a task with each `side`; sides take turns, so that load affects all alike."""
    best: list[Facts] = [{"seconds": math.inf} for _ in sides]
    for _ in range(rounds):
        for number, side in enumerate(sides):
            found = measure(task, threads=threads, side=side, **options)
            best[number] = min(best[number], found, key=lambda facts: facts["seconds"])
    return best


def clocked(run: Callable[[], Value], repeats: int = 1) -> tuple[Value, float]:
    """Return value of a function, and the least seconds of several calls."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        found = run()
        seconds.append(time.perf_counter() - begin)
    return found, min(seconds)


def row(what: str, ours: Facts | float, reference: Facts | float, note: str) -> Facts:
    """One row of speed.csv from seconds of two sides, or `seconds` and optional `mib`, `error`."""
    sides = {"ours": ours, "reference": reference}
    facts = {k: side if isinstance(side, dict) else {"seconds": side} for k, side in sides.items()}
    out: Facts = {"what": what, **{f"{side}_s": facts[side]["seconds"] for side in facts}}
    out["ratio"] = out["reference_s"] / out["ours_s"]
    pairs = [(side, name) for name in ("mib", "error") for side in facts if name in facts[side]]
    return {**out, **{f"{side}_{name}": facts[side][name] for side, name in pairs}, "note": note}


def main(task: str, options: Mapping[str, Any]) -> Facts:
    """Run a task in this process, and add its memory use."""
    keep_freed_memory()  # as in every job of the pipeline, and for references alike
    module, _, function = task.partition(":")
    run = getattr(import_module(f"benchmarks.{module}"), function)
    before = psutil.Process().memory_info().rss / 2**20
    found: Facts = run(**options)
    peak = peak_mib()
    return {**found, "mib": peak - before, "peak_mib": peak}


def arguments(description: str | None, *places: str) -> list[Path | None]:
    """Paths on a benchmark's command line, where names in brackets may be left out; or its help."""
    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=words)
    for name in places:
        optional = name.startswith("[")
        parser.add_argument(name.strip("[]"), type=Path, nargs="?" if optional else None)
    return list(vars(parser.parse_args()).values())


if __name__ == "__main__":
    measured = main(sys.argv[1], json.loads(sys.argv[2]))
    print(json.dumps(measured, default=lambda array: array.tolist()))
