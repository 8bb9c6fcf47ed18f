"""Target sets: the images under attack, and the range that a network is fed with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gradleak.artifacts import read_tensors, write_tensors
from gradleak.data.arrays import Dataset
from gradleak.errors import DataError


@dataclass(frozen=True)
class TargetSet:
    """Images under attack, in B batches of K.

    Attributes
    ----------
    images
        uint8 (B, K, C, H, W).
    labels, indices
        int64 (B, K); `indices` are positions in the data set's split.
    offset
        Inputs are images / 255 + offset, so they lie in [offset, 1 + offset].
    names
        One name for each batch, used in tables and figures.
    source
        Data set, split, origin and checksum of the images.
    """

    images: np.ndarray
    labels: np.ndarray
    indices: np.ndarray
    offset: float
    names: tuple[str, ...]
    source: dict[str, str]

    def inputs(self, batch: int) -> np.ndarray:
        """What the network is fed with, float64 (K, C, H, W)."""
        return self.images[batch] / 255.0 + self.offset


def build(data: Dataset, settings: dict[str, Any], count: int | None) -> TargetSet:
    """Choose images as `settings` (one entry of ``targets`` in config.yaml) says.

    Raises
    ------
    DataError
        If an index is out of range.
    """
    if settings["indices"] is not None:
        indices = [int(i) for i in settings["indices"]]
    else:
        assert count is not None
        if count > len(data):
            raise DataError(
                f"targets: count {count} is more than the {len(data)} images of {data.dataset}-"
                f"{data.split}; lower it."
            )
        indices = list(range(count))
    images, labels = data.take(indices)
    classes = [data.classes[int(label)] for label in labels]
    names = settings["names"] or [f"{c} {i}" for c, i in zip(classes, indices, strict=True)]
    return TargetSet(
        images=images[:, None],
        labels=labels[:, None],
        indices=np.array(indices, dtype=np.int64)[:, None],
        offset=float(settings["offset"]),
        names=tuple(names),
        source={**data.identity(), "classes": ", ".join(classes)},
    )


def save(path: str, targets: TargetSet, provenance: dict[str, Any]) -> None:
    """Write a target set."""
    tensors = {
        "images": targets.images,
        "labels": targets.labels,
        "indices": targets.indices,
    }
    metadata = {
        "offset": targets.offset,
        "names": list(targets.names),
        "source": targets.source,
        "provenance": provenance,
    }
    write_tensors(path, tensors, metadata)


def read(path: str) -> TargetSet:
    """Read a target set."""
    tensors, metadata = read_tensors(path)
    return TargetSet(
        tensors["images"],
        tensors["labels"],
        tensors["indices"],
        metadata["offset"],
        tuple(metadata["names"]),
        metadata["source"],
    )
