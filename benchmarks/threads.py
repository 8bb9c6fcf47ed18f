"""Gain from a second thread: the same jobs on one and on two."""

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
            for name, entry in raw.get(section, {}).items()
        }
        for section in ("targets", "attacks", "experiments", "trainings", "generators")
    }


def compare(
    overrides: dict[str, Any], artifacts: Sequence[str], root: Path = TREE
) -> list[dict[str, Any]]:
    """Make each artifact on one thread and on two, the better of two runs each: a row for each."""
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
            one, two = (best[count] for count in COUNTS)
            gain = one["seconds"] / two["seconds"]
            row = {"artifact": artifact, "script": made["script"], "declared": made["threads"]}
            row |= {"seconds_1": one["seconds"], "seconds_2": two["seconds"], "gain": gain}
            row |= {"cpu_seconds_1": one["cpu_seconds"], "cpu_seconds_2": two["cpu_seconds"]}
            rows.append({**row, "fastest": COUNTS[int(gain >= WORTH)]})
    return rows
