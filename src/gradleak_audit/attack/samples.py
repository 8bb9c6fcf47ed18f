"""Images under attack, images to compare reconstructions with, and images to train on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from gradleak.data import embedded
from gradleak.data.arrays import Dataset
from gradleak.data.own_folder import SUFFIXES
from gradleak.data.targets import TargetSet
from gradleak.errors import ConfigError, DataError

# Fewest images outside its batch that a reconstruction is compared with.
OTHERS = 20
# Further images in that comparison, if available.
POOL = 120
# Bytes of images kept for attacks and training.
KEPT = 2**28
# Input side up to which the embedded 32x32 photos suffice.
SMALL = 64
COLOURS = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Samples:
    """Images at the network's input size.

    Sorted so that the first image of each class comes first, then the second of each: batches hold
    as many classes as possible.
    """

    images: np.ndarray  # uint8 (N, C, H, W)
    labels: np.ndarray  # int64 (N,), each below the network's classes
    words: tuple[str, ...]  # name of each label
    title: str  # source in words
    source: dict[str, str]  # source as in `gradleak.data.arrays.Dataset.identity`
    labelled: bool  # whether labels describe the images, so that a network can learn them

    def __len__(self) -> int:
        return len(self.labels)

    def check(self, count: int, largest: int) -> None:
        """Raise `DataError` if there are too few images for `count` batches."""
        needed = self.needed(count, largest)
        if len(self) < needed:
            raise DataError(
                f"samples: {self.title} are {len(self)} images, but an audit takes {needed}, for "
                f"{count} batches of {largest}, and {OTHERS} others to tell each batch from; add "
                "images, or lower count or batches."
            )

    @staticmethod
    def needed(count: int, largest: int) -> int:
        """Number of images needed for `count` batches and for comparisons with one batch."""
        return max(count * largest, largest + OTHERS)

    def pool(self, count: int, largest: int) -> np.ndarray:
        """Pixels in [0, 1] (P, C, H, W) for comparisons, images under attack first.

        The same for all batch sizes up to `largest`.
        """
        size = min(len(self), max(self.needed(count, largest), POOL))
        return self.images[:size] / 255.0

    def batches(self, count: int, size: int) -> np.ndarray:
        """Image numbers (B, K) of each batch; batch b begins with image b for any K."""
        others = np.arange(count, count * size).reshape(count, size - 1)
        return np.concatenate([np.arange(count)[:, None], others], axis=1)

    def targets(self, chosen: np.ndarray, offset: float, std: float) -> TargetSet:
        """Target set of batches with image numbers `chosen` (B, K)."""
        labels = self.labels[chosen]
        return TargetSet(
            images=self.images[chosen],
            labels=labels,
            indices=chosen.astype(np.int64),
            offset=offset,
            names=tuple(f"image {batch[0]}" for batch in chosen.tolist()),
            source=self.source,
            words={int(label): self.words[int(label)] for label in np.unique(labels)},
            std=std,
        )

    def dataset(self) -> Dataset:
        """All images as a data set for training, with the network's classes."""
        return Dataset(self.images, self.labels, list(self.words), **self.source)


def from_dataset(data: Dataset, size: tuple[int, int, int], classes: int) -> Samples:
    """Images of one of the pipeline's data sets at the network's input `size` (C, H, W).

    Labels are taken modulo `classes` if the data set has more. Raises `ConfigError` if the input
    has neither one nor three channels.
    """
    title, words = f"{KINDS[data.origin]} {data.dataset} ({data.split})", data.classes
    if len(words) > classes:
        title += f", its {len(words)} classes modulo {classes}"
        words = []
    labels, source = data.labels % classes, data.identity()
    return _samples(data.images, labels, size, (*words, *_numbers(words, classes)), title, source)


def _numbers(words: Sequence[str], classes: int) -> Iterable[str]:
    """Names for classes beyond those that have one."""
    return map(str, range(len(words), classes))


def _samples(
    pictures: Sequence[Path] | np.ndarray,
    labels: np.ndarray,
    size: tuple[int, int, int],
    words: tuple[str, ...],
    title: str,
    source: dict[str, str],
    labelled: bool = True,
) -> Samples:
    """Resize images with labels (N,) and sort them by turns of class."""
    if size[0] not in COLOURS:
        raise ConfigError(
            f"input: [{', '.join(map(str, size))}] has {size[0]} channels, but images have 1 "
            "(grey) or 3 (colour); an audit can take no other network."
        )
    seen, turns = Counter[int](), []
    for label in labels.tolist():
        turns.append(seen[label])
        seen[label] += 1
    chosen = np.argsort(turns, kind="stable")[: max(1, KEPT // int(np.prod(size)))]
    fitted = [_fitted(pictures[k], size) for k in chosen]
    images = np.stack(fitted) if fitted else np.empty((0, *size), np.uint8)
    return Samples(images, labels[chosen].astype(np.int64), words, title, source, labelled)


KINDS = {
    "embedded": "embedded pictures,",
    "official": "the data set",
    "own folder": "images of one's own,",
    "by hand": "the data set",
}


def from_embedded(size: tuple[int, int, int], classes: int) -> Samples:
    """Photos, or digits for inputs with one channel, that ship with the libraries."""
    if size[0] == 1:
        return from_dataset(embedded.build("digits", "train"), size, classes)
    if max(size[1:]) <= SMALL:
        return from_dataset(embedded.build("photos10", "train"), size, classes)
    data = embedded.build("photos224", "val")
    # In that data set each crop is a class; here each photo is.
    names = [photo.name for photo in embedded.PHOTOS]
    labels = np.arange(len(data)) % len(names)
    whole = Dataset(data.images, labels, names, data.dataset, data.split, data.origin)
    return from_dataset(whole, size, classes)


def from_pixels(
    pixels: np.ndarray, labels: Sequence[int] | None, size: tuple[int, int, int], classes: int
) -> Samples:
    """Crop images at the centre and resize them to `size` (C, H, W).

    Parameters
    ----------
    pixels
        uint8 (N, C, H, W), C 1 or 3.
    labels
        (N,), each below `classes`; None for the image's number modulo `classes`.

    Raises
    ------
    ConfigError
        If images or labels have another form.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] not in COLOURS:
        raise ConfigError(
            f"images: an array {pixels.dtype} of shape {pixels.shape} is not uint8 (N, C, H, W) "
            "with one channel or three; convert it."
        )
    known = np.arange(len(pixels)) % classes if labels is None else np.asarray(labels)
    if known.shape != (len(pixels),) or not np.isin(known, np.arange(classes)).all():
        raise ConfigError(
            f"labels: {known.size} labels for {len(pixels)} images have to be one for each, from 0 "
            f"to {classes - 1}; correct them."
        )
    words, title = tuple(_numbers((), classes)), "images given as pixels"
    return _samples(pixels, known, size, words, title, _own("pixels"), labels is not None)


def from_folder(path: str, size: tuple[int, int, int], classes: int) -> Samples:
    """Read a folder of images, cropped at the centre to the input's shape and resized to `size`.

    Sub-folders are classes, in sorted order. Without any, labels are image numbers modulo
    `classes`.

    Raises `ConfigError` if the folder is missing, has more sub-folders than the network has
    outputs, or the input has neither one nor three channels, and `DataError` if it holds no images,
    images both in sub-folders and outside, or an unreadable one.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(f"samples: {path} is no folder; give one that holds images.")
    files = sorted(file for file in folder.rglob("*") if _is_image(file.relative_to(folder)))
    tops = [file.relative_to(folder).parts for file in files]
    inside = sorted({parts[0] for parts in tops if len(parts) > 1})
    if not files:
        raise DataError(
            f"samples: {path} holds no images ({', '.join(sorted(SUFFIXES))}); add some, or give "
            "another folder."
        )
    if inside and min(len(parts) for parts in tops) == 1:
        raise DataError(
            f"samples: {path} has images in sub-folders and outside of them; sort all of them into "
            "sub-folders, one for each class, or none."
        )
    if len(inside) > classes:
        raise ConfigError(
            f"samples: {path} has {len(inside)} sub-folders, but the network has {classes} "
            f"outputs; give it no more than {classes}."
        )
    labels = np.arange(len(files)) % classes
    if inside:
        labels = np.array([inside.index(parts[0]) for parts in tops])
    words, title = (*inside, *_numbers(inside, classes)), f"the images in {folder.name}"
    return _samples(files, labels, size, words, title, _own(folder.name), bool(inside))


def _own(name: str) -> dict[str, str]:
    return {"dataset": name, "split": "all", "origin": "own folder", "sha256": ""}


def _is_image(file: Path) -> bool:
    hidden = any(part.startswith((".", "__MACOSX")) for part in file.parts)
    return file.suffix.lower() in SUFFIXES and not hidden


def _opened(file: Path, size: tuple[int, int, int]) -> np.ndarray:
    if not file.is_file():
        # Opening a pipe would block forever.
        raise DataError(
            f"samples: {file} is no regular file but a folder, a broken link, a pipe or a device; "
            "remove it."
        )
    try:
        with Image.open(file) as opened:
            return _fitted(ImageOps.exif_transpose(opened), size)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"samples: {file} cannot be read as an image ({reason}); replace or remove it."
        ) from error


def _fitted(picture: Image.Image | np.ndarray | Path, size: tuple[int, int, int]) -> np.ndarray:
    """Crop an image, or pixels (C, H, W), at the centre and resize it to uint8 of `size`."""
    if isinstance(picture, Path):
        return _opened(picture, size)
    if isinstance(picture, np.ndarray):
        grey = len(picture) == 1
        picture = Image.fromarray(picture[0] if grey else picture.transpose(1, 2, 0))
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # keeps transparency that RGB cannot express
    (channels, height, width), found = size, picture.convert(COLOURS[size[0]])
    if found.size != (width, height):
        found = ImageOps.fit(found, (width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(found)
    return pixels[None].copy() if channels == 1 else pixels.transpose(2, 0, 1).copy()
