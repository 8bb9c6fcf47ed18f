"""Gain from a second thread: the same jobs on one and on two."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pipeline import TREE, copy_tree, make
from gradleak.runtime import job_records

Run = dict[str, Any]  # a job's record in its sidecar
COUNTS = (1, 2)
# Two parallel jobs do twice the work, so a second thread must gain nearly as much.
WORTH = 1.5
# Reduced images and steps that keep the proportions of a job's time; networks are unchanged.
FEW = {"count": 2, "seeds": 1, "iterations": 60, "generations": 10, "starts": 2, "epochs": 1}


def shortened(raw: dict[str, Any]) -> dict[str, Any]:
    """Sections of a checked config.yaml, as plain values, with few images and steps: see `FEW`."""
    return {
        section: {
            name: {
                key: min(value, FEW[key]) if key in FEW and value is not None else value
                for key, value in entry.items()
            }
            for name, entry in raw[section].items()
        }
        for section in ("targets", "attacks", "experiments", "trainings", "generators")
    }


def compare(
    overrides: dict[str, Any], artifacts: Sequence[str], root: Path = TREE
) -> list[dict[str, Any]]:
    """Make each artifact on one thread and on two, in a copy of the tree; a row for each.

    `seconds_1` and `seconds_2` are wall seconds of the job's process, imports included, the better
    of two runs each, taken in turns; `gain` is their ratio; `declared` is the rule's number of
    threads, `fastest` follows from the gain and `WORTH`. `overrides` are top-level keys of
    config.yaml.
    """
    rows, cores = [], ("--cores", str(max(COUNTS)))
    with tempfile.TemporaryDirectory(prefix="gradleak-threads-") as name:
        folder = Path(name)
        copy_tree(root, folder, overrides)
        for artifact in artifacts:
            make(folder, *cores, artifact)
            sidecar = folder / job_records.path_of(artifact)
            made = job_records.read(sidecar)
            best: dict[int, Run] = {}
            for count in COUNTS * 2:
                threads = f"{made['rule']}={count}"
                make(folder, *cores, "--force", "--set-threads", threads, "--", artifact)
                taken = job_records.read(sidecar)
                best[count] = min(best.get(count, taken), taken, key=lambda run: run["seconds"])
            rows.append(_row(artifact, made, *(best[count] for count in COUNTS)))
    return rows


def _row(artifact: str, made: Run, one: Run, two: Run) -> dict[str, Any]:
    gain = one["seconds"] / two["seconds"]
    return {
        "artifact": artifact,
        "script": made["script"],
        "declared": made["threads"],
        "seconds_1": one["seconds"],
        "seconds_2": two["seconds"],
        "gain": gain,
        "cpu_seconds_1": one["cpu_seconds"],
        "cpu_seconds_2": two["cpu_seconds"],
        "fastest": COUNTS[int(gain >= WORTH)],
    }
