"""Target sets: the images under attack, and the input range of networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from gradleak.data.arrays import Dataset
from gradleak.data.resize import bilinear, fit
from gradleak.errors import DataError
from gradleak.runtime.artifacts import check_array, read_tensors, whole, write_tensors
from gradleak.runtime.metadata import Amount, Metadata

ARRAYS = ("images", "labels", "indices")
MOST_NAMED = 8  # batches of more images are named by their number, not by their images


@dataclass(frozen=True)
class TargetSet:
    """Images under attack, in B batches of K."""

    images: np.ndarray  # uint8 (B, K, C, H', W'), as stored
    labels: np.ndarray  # int64 (B, K)
    indices: np.ndarray  # int64 (B, K), positions in the data set's split
    offset: float  # see `std`
    names: tuple[str, ...]  # one for each batch, for tables and figures
    source: dict[str, str]  # data set, split, origin and checksum of the images
    words: dict[int, str]  # class of each label, in words
    enlarged: int = 1  # repetitions of each stored pixel along both axes: H = enlarged · H'
    std: float = 1.0  # inputs are (images / 255 + offset) / std

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an input."""
        channels, height, width = self.images.shape[2:]
        return channels, self.enlarged * height, self.enlarged * width

    @property
    def size(self) -> int:
        """K, the number of images in a batch."""
        return int(self.images.shape[1])

    def inputs(self, batch: int, part: slice = slice(None)) -> np.ndarray:
        """Network inputs, float64 (K, C, H, W), or those of `part` of the images."""
        small, times = (self.images[batch, part] / 255.0 + self.offset) / self.std, self.enlarged
        return small if times == 1 else small.repeat(times, axis=-2).repeat(times, axis=-1)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value of an input."""
        return self.offset / self.std, (1.0 + self.offset) / self.std

    def pixels(self, inputs: np.ndarray) -> np.ndarray:
        """Inputs as pixels in [0, 1]."""
        return inputs * self.std - self.offset

    def batch(self, number: int) -> Batch:
        """One batch, whose inputs need not be held all at once."""
        return Batch(self, number)

    def classes(self, batch: int) -> list[str]:
        """Class of each image of a batch, in words (K,)."""
        return [self.words[int(label)] for label in self.labels[batch]]


@dataclass(frozen=True)
class Batch:
    """Inputs of one batch of a target set, computed as they are read."""

    targets: TargetSet
    number: int

    def __len__(self) -> int:
        """K."""
        return self.targets.size

    def __getitem__(self, part: slice) -> np.ndarray:
        """Inputs of `part` of the batch, float64 (k, C, H, W)."""
        return self.targets.inputs(self.number, part)


Images = np.ndarray | Batch  # a batch (K, C, H, W) that is read in parts


def build(data: Dataset, settings: dict[str, Any], count: int | None, size: int) -> TargetSet:
    """Choose images according to `settings`, an entry of ``targets`` in config.yaml.

    `count` is the number of batches (without listed indices), `size` that of images in each. Raises
    `DataError` if an index is out of range, a class lacks images, or images cannot be resized.
    """
    chosen = _choose(data, settings, count, size)
    indices = chosen * (1 + settings["relabel"])
    images, labels = data.take(indices)
    if settings["relabel"]:
        draw = np.random.default_rng((settings["seed"], len(chosen)))
        classes = settings["classes"] or len(data.classes)
        labels[len(chosen) :] = draw.integers(0, classes, len(indices) - len(chosen))
    images, enlarged = resized(images, settings["size"], settings["resize"])
    words = {int(label): data.classes[int(label)] for label in labels}
    batches = (len(indices) // size, size)
    return TargetSet(
        images=images.reshape(*batches, *images.shape[1:]),
        labels=labels.reshape(batches),
        indices=np.array(indices, dtype=np.int64).reshape(batches),
        offset=float(settings["offset"]),
        names=tuple(settings["names"] or _names(labels, indices, words, size)),
        source=data.identity(),
        words=words,
        enlarged=enlarged,
        std=float(settings["std"]),
    )


def _names(labels: np.ndarray, indices: list[int], words: dict[int, str], size: int) -> list[str]:
    if size > MOST_NAMED:
        return [f"batch {number} of {size}" for number in range(len(indices) // size)]
    each = [f"{words[int(label)]} {i}" for label, i in zip(labels, indices, strict=True)]
    return [" + ".join(each[k : k + size]) for k in range(0, len(each), size)]


def _choose(data: Dataset, settings: dict[str, Any], count: int | None, size: int) -> list[int]:
    """Positions in the split, batch after batch."""
    if settings["indices"] is not None:
        return [int(i) for i in settings["indices"]]
    assert count is not None
    if settings["draw"] != "consecutive":
        drawn = settings["draw"] == "random"
        return _drawn(data, settings, count, size) if drawn else _one_of_each(data, count, size)
    first, end = settings["first"], settings["first"] + count * size
    if end > len(data):
        raise DataError(
            f"targets: {count} batches of {size} from image {first} on are more than the "
            f"{len(data)} images of {data.dataset}-{data.split}; lower count."
        )
    return list(range(first, end))


def _one_of_each(data: Dataset, count: int, size: int) -> list[int]:
    """Positions such that batch b has image b of each of the first `size` classes."""
    labels = np.asarray(data.labels)
    if size > len(data.classes):
        raise DataError(
            f"targets: draw: unique takes one image of each class, but {data.dataset} has "
            f"{len(data.classes)} classes for a batch of {size}; lower batch."
        )
    places = [np.flatnonzero(labels == label)[:count] for label in range(size)]
    if (fewest := min(map(len, places))) < count:
        raise DataError(
            f"targets: draw: unique needs {count} images of each class, but {data.dataset}-"
            f"{data.split} has only {fewest} of one; lower count."
        )
    return [int(index) for index in np.stack(places, axis=1).ravel()]


def _drawn(data: Dataset, settings: dict[str, Any], count: int, size: int) -> list[int]:
    """Draw some classes for each batch, then any of their images without replacement."""
    labels, all_classes = np.asarray(data.labels), len(data.classes)
    wanted = settings["classes"] or all_classes
    out: list[int] = []
    for number in range(count):
        draw = np.random.default_rng((settings["seed"], number))
        chosen = draw.permutation(all_classes)[:wanted]
        if len(places := np.flatnonzero(np.isin(labels, chosen))) < size:
            raise DataError(
                f"targets: draw: random finds {len(places)} images of {wanted} classes in "
                f"{data.dataset}-{data.split} for a batch of {size}; raise classes or lower batch."
            )
        out += [int(index) for index in draw.choice(places, size, replace=False)]
    return out


def resized(images: np.ndarray, size: int | None, how: str) -> tuple[np.ndarray, int]:
    """Images (n, C, H, W) brought to `size`, but for the repetitions of pixels, returned beside."""
    plan = fit((images.shape[2], images.shape[3]), size, how, "targets")
    images = images[:, :, plan.rows, plan.columns]
    return images if plan.side is None else bilinear(images, plan.side), plan.repeat


def save(path: str, targets: TargetSet, provenance: dict[str, Any]) -> None:
    """Write a target set."""
    tensors = {name: getattr(targets, name) for name in ARRAYS}
    metadata = {name: getattr(targets, name) for name in _Metadata.model_fields}
    write_tensors(path, tensors, {**metadata, "provenance": provenance})


class _Metadata(Metadata):
    offset: float
    std: Annotated[float, Field(gt=0)]
    names: list[str]
    source: dict[str, str]
    words: dict[str, str]
    enlarged: Amount


def read(path: str) -> TargetSet:
    """Read a target set; raise `ArtifactError` if it is missing, damaged, or of another kind."""
    tensors, metadata = read_tensors(path, _Metadata)
    with whole(path):
        images = check_array(tensors, "images", ["uint8"], [None] * 5)
        batches = images.shape[:2]
        labels, indices = (check_array(tensors, k, ["int64"], batches) for k in ARRAYS[1:])
        words = {int(label): word for label, word in metadata["words"].items()}
        unknown = set(labels.ravel().tolist()) - words.keys()
        if unknown or len(metadata["names"]) != len(images):
            raise ValueError("a label or a batch has no name")
    known = {name: metadata[name] for name in _Metadata.model_fields}
    known |= {"names": tuple(metadata["names"]), "words": words}
    return TargetSet(images, labels, indices, **known)
