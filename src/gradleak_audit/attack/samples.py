"""Images under attack, images to compare reconstructions with, and images to train on."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from gradleak.data import embedded
from gradleak.data.arrays import Dataset
from gradleak.data.own_folder import SUFFIXES
from gradleak.data.targets import TargetSet
from gradleak.errors import ConfigError, DataError
from gradleak.reading.model_checks import Size

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
    """Images at the network's input size, the first of each class before the second of each."""

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
        if len(self) < (needed := self.needed(count, largest)):
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
        """Pixels in [0, 1] (P, C, H, W) for comparisons, images under attack first."""
        size = min(len(self), max(self.needed(count, largest), POOL))
        return self.images[:size] / 255.0

    def batches(self, count: int, size: int) -> np.ndarray:
        """Image numbers (B, K) of each batch; batch b begins with image b for any K."""
        others = np.arange(count, count * size).reshape(count, size - 1)
        return np.concatenate([np.arange(count)[:, None], others], axis=1)

    def targets(self, chosen: np.ndarray, offset: float, std: float) -> TargetSet:
        """Target set of batches with image numbers `chosen` (B, K)."""
        labels, names = self.labels[chosen], (f"image {batch[0]}" for batch in chosen.tolist())
        given = self.images[chosen], labels, chosen.astype(np.int64), offset, tuple(names)
        words = {label: self.words[label] for label in np.unique(labels).tolist()}
        return TargetSet(*given, source=self.source, words=words, std=std)

    def dataset(self) -> Dataset:
        """All images as a data set for training, with the network's classes."""
        return Dataset(self.images, self.labels, list(self.words), **self.source)


# Provides images for an input size and a number of classes.
Source = Callable[[Size, int], Samples]
# Words for origins of data sets; embedded ones have their own, all others are "the data set".
KINDS = {"own folder": "your images,"}


def from_dataset(data: Dataset, size: Size, classes: int) -> Samples:
    """Images of a data set of the pipeline; labels are modulo `classes` if it has more."""
    kind, words = KINDS.get(data.origin, "the data set"), data.classes
    if data.origin == "embedded":
        kind = f"{embedded.described(data.dataset)},"
    title = f"{kind} {data.dataset} ({data.split})"
    if len(words) > classes:
        title += f", its {len(words)} classes modulo {classes}"
        words = []
    own = words, title, data.identity(), True
    return _samples(data.images, data.labels % classes, size, classes, *own)


def _samples(
    pictures: Any, labels: np.ndarray, size: Size, classes: int, words: Sequence[str], *more: Any
) -> Samples:
    """Resize images, files or pixels, with labels (N,), and sort them by turns of class.

    `words` names the first classes, the others have numbers; `more` is as of `Samples`.
    """
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
    names = (*words, *map(str, range(len(words), classes)))
    return Samples(images, labels[chosen].astype(np.int64), names, *more)


def from_embedded(size: Size, classes: int) -> Samples:
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
    pixels: np.ndarray, labels: Sequence[int] | None, size: Size, classes: int
) -> Samples:
    """Crop images uint8 (N, C, H, W), C 1 or 3, at the centre and resize them to `size` (C, H, W).

    `labels` (N,) are below `classes`, by default the images' numbers modulo `classes`. Raises
    `ConfigError` if images or labels have another form.
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
    own = (), "images given as pixels", _own("pixels"), labels is not None
    return _samples(pixels, known, size, classes, *own)


def from_folder(path: str, size: Size, classes: int) -> Samples:
    """Read a folder of images, cropped at the centre to the input's shape and resized to `size`.

    Sub-folders are classes, in sorted order. Without any, labels are image numbers modulo
    `classes`. Raises `ConfigError` if the folder is missing, has more sub-folders than the network
    has outputs, or the input has neither one nor three channels, and `DataError` if it holds no
    images, images both in sub-folders and outside, or an unreadable one.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(f"samples: {path} is not a folder; give one that holds images.")
    files = sorted(file for file in folder.rglob("*") if _is_image(file.relative_to(folder)))
    tops = [file.relative_to(folder).parts for file in files]
    inside = sorted({first for first, *others in tops if others})
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
    own = inside, f"the images in {folder.name}", _own(folder.name), bool(inside)
    return _samples(files, labels, size, classes, *own)


def _own(name: str) -> dict[str, str]:
    return {"dataset": name, "split": "all", "origin": "own folder", "sha256": ""}


def _is_image(file: Path) -> bool:
    hidden = any(part.startswith((".", "__MACOSX")) for part in file.parts)
    return file.suffix.lower() in SUFFIXES and not hidden


def _opened(file: Path, size: Size) -> np.ndarray:
    if not file.is_file():
        # Opening a pipe would block forever.
        raise DataError(
            f"samples: {file} is not a regular file but a folder, broken link, pipe or device; "
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


def _fitted(picture: Image.Image | np.ndarray | Path, size: Size) -> np.ndarray:
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
