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
        Data set, split, origin and checksum of the images; ``classes`` names the class of each
        image, batch after batch.
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

    def classes(self, batch: int) -> list[str]:
        """Class of each image of a batch, in words (K,)."""
        size = self.images.shape[1]
        return self.source["classes"].split(", ")[batch * size : (batch + 1) * size]


def build(data: Dataset, settings: dict[str, Any], count: int | None) -> TargetSet:
    """Choose images as `settings` (one entry of ``targets`` in config.yaml) says.

    Raises
    ------
    DataError
        If an index is out of range.
    """
    size = settings["batch"]
    if settings["indices"] is not None:
        indices = [int(i) for i in settings["indices"]]
    else:
        assert count is not None
        first, end = settings["first"], settings["first"] + count * size
        if end > len(data):
            raise DataError(
                f"targets: {count} batches of {size} from image {first} on are more than the "
                f"{len(data)} images of {data.dataset}-{data.split}; lower count."
            )
        indices = list(range(first, end))
    images, labels = data.take(indices)
    classes = [data.classes[int(label)] for label in labels]
    each = [f"{c} {i}" for c, i in zip(classes, indices, strict=True)]
    default = [" + ".join(each[k : k + size]) for k in range(0, len(each), size)]
    batches = (len(indices) // size, size)
    return TargetSet(
        images=images.reshape(*batches, *images.shape[1:]),
        labels=labels.reshape(batches),
        indices=np.array(indices, dtype=np.int64).reshape(batches),
        offset=float(settings["offset"]),
        names=tuple(settings["names"] or default),
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
