"""What a second thread gains: the same jobs on one and on two."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradleak import sidecars
from gradleak.benchmarks.measure import last_line
from gradleak.benchmarks.pipeline import copy_tree, snakemake
from gradleak.errors import ArtifactError

COUNTS = (1, 2)
# Two jobs side by side do twice the work, so a second thread must come near that to be worth it.
WORTH = 1.5
# Images and steps that are enough to see how a job's time divides; the networks stay as they are.
FEW = {"count": 2, "seeds": 1, "iterations": 60, "generations": 10, "starts": 2, "epochs": 1}
COLUMNS = (
    "artifact",
    "script",
    "declared",
    "seconds_1",
    "seconds_2",
    "gain",
    "cpu_seconds_1",
    "cpu_seconds_2",
    "fastest",
)


def shortened(raw: dict[str, Any]) -> dict[str, Any]:
    """Top-level keys of config.yaml with fewer images and steps, as `FEW` says.

    Parameters
    ----------
    raw
        A checked config.yaml as plain values.
    """
    changed = {}
    for section in ("targets", "attacks", "experiments", "trainings", "generators"):
        changed[section] = {
            name: {
                key: min(value, FEW[key]) if key in FEW and value is not None else value
                for key, value in entry.items()
            }
            for name, entry in raw[section].items()
        }
    return changed


def _make(folder: Path, *arguments: str) -> None:
    done = snakemake(folder, "--cores", str(max(COUNTS)), *arguments)
    if done.returncode:
        raise ArtifactError(
            f"Snakemake could not make {arguments[-1]} ({last_line(done.stderr)}); make it here "
            "first to see why."
        )


def compare(root: str, overrides: dict[str, Any], artifacts: Sequence[str]) -> list[dict[str, Any]]:
    """Make each artifact on one thread and on two, in a copy of the tree.

    Parameters
    ----------
    root
        Folder of the Snakefile.
    overrides
        Top-level keys of config.yaml that differ.
    artifacts
        Files to make, each with everything before it.

    Returns
    -------
    list
        A row for each: `seconds_1` and `seconds_2` are wall seconds of the job's process, imports
        included, the better of two runs each, taken in turns; `gain` is their ratio; `declared`
        what the rule asks for, `fastest` what `WORTH` makes of the gain.

    Raises
    ------
    ArtifactError
        If Snakemake ends with an error.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="gradleak-threads-") as name:
        folder = Path(name)
        copy_tree(Path(root), folder, overrides)
        for artifact in artifacts:
            _make(folder, artifact)
            sidecar = folder / sidecars.path_of(artifact)
            made = sidecars.read(sidecar)
            taken: dict[int, list[dict[str, Any]]] = {count: [] for count in COUNTS}
            for _ in range(2):
                for count in COUNTS:
                    threads = f"{made['rule']}={count}"
                    _make(folder, "--force", "--set-threads", threads, "--", artifact)
                    taken[count].append(sidecars.read(sidecar))
            rows.append(_row(artifact, made, taken))
    return rows


def _row(
    artifact: str, made: dict[str, Any], taken: dict[int, list[dict[str, Any]]]
) -> dict[str, Any]:
    best = {count: min(runs, key=lambda run: run["seconds"]) for count, runs in taken.items()}
    one, two = (best[count] for count in COUNTS)
    gain = one["seconds"] / two["seconds"]
    values = (
        artifact,
        made["script"],
        made["threads"],
        one["seconds"],
        two["seconds"],
        gain,
        one["cpu_seconds"],
        two["cpu_seconds"],
        COUNTS[int(gain >= WORTH)],
    )
    return dict(zip(COLUMNS, values, strict=True))
