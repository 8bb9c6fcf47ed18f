"""Reconstruction files: images of every reconstruction, and a record of each run."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gradleak.runtime.artifacts import FLOATS, check_array, read_metadata, read_tensors, whole
from gradleak.runtime.metadata import Metadata, Place


class _Run(Metadata):
    model: str
    seed: Place
    batch: Place
    answer: Place
    kind: str
    status: Literal["ok", "failed", "not_applicable"]
    reason: str
    label: int | None = None
    loss: float | None = None
    evaluations: int = 0
    classes: Sequence[Place] = ()
    counts: Sequence[int] = ()
    partial: bool = False


class _Metadata(Metadata):
    runs: list[_Run]


def read(path: str) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Images and run records of a file; `ArtifactError` if missing, damaged or lacking an image."""
    images, metadata = read_tensors(path, _Metadata)
    with whole(path):
        for key in images:
            check_array(images, key, FLOATS, [None] * (7 if key.endswith("/images") else 3))
        for run in metadata["runs"]:
            _check(images, run)
    return images, metadata["runs"]


def read_runs(path: str) -> list[dict[str, Any]]:
    """Return the run records of a reconstruction file too large to read whole; as `read`."""
    runs: list[dict[str, Any]] = read_metadata(path, _Metadata)["runs"]
    return runs


def _check(images: Mapping[str, np.ndarray], run: Mapping[str, Any]) -> None:
    """Raise for a record without a place among the images, or a reconstruction without an image."""
    if run["status"] != "ok":
        return
    place = (run["seed"], run["batch"], run["answer"])
    said = f"answer {run['answer']} of {run['model']}, seed {run['seed']}, batch {run['batch']}"
    found = images[f"{run['model']}/images"]
    if any(index >= size for index, size in zip(place, found.shape, strict=False)):
        raise ValueError(f"it has no place for {said}")
    kept = np.isfinite(found[place]).all(axis=(1, 2, 3))
    if not kept[: len(run.get("classes", ())) or None].any():
        raise ValueError(f"{said} is ok but its images hold NaN or infinity")
    if run.get("counts") and len(run["classes"]) != len(run["counts"]):
        raise ValueError(f"{said} has classes without counts")
