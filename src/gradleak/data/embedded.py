"""Stand-ins for the real data sets, made from images that installed packages carry.

Eight colour photos of scikit-image and two of scikit-learn become classes, square crops of them
samples; scikit-learn's digits stand in for MNIST. Crops follow an unscrambled Halton sequence, so
equal versions of the packages give equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import as_file, files
from itertools import product
from typing import NamedTuple

import numpy as np
from PIL import Image

from gradleak.data import arrays, catalogue
from gradleak.data.arrays import Dataset
from gradleak.errors import DataError
from gradleak.runtime.artifacts import FilePath

DIGITS_TRAIN = 1437
CROPS = 100  # of each photo in photos224
Built = tuple[np.ndarray, np.ndarray, list[str]]  # images, labels, names of classes


class Box(NamedTuple):
    """Part of a picture, in pixels or as fractions of its sides."""

    left: float
    top: float
    right: float
    bottom: float

    def scaled(self, width: float, height: float) -> Box:
        """Box in pixels of a picture of that size, from a box in fractions."""
        return Box(self.left * width, self.top * height, self.right * width, self.bottom * height)


class Photo(NamedTuple):
    """A photo, the package that carries it, and the part that shows its subject."""

    name: str
    package: str
    file: str
    portrait: Box


# Index 1 is a vehicle and index 3 an animal, as in CIFAR-10's training images.
PHOTOS = (
    Photo("astronaut", "skimage.data", "astronaut.png", Box(0.05, 0.0, 0.75, 0.7)),
    Photo("motorcycle", "skimage.data", "motorcycle_left.png", Box(0.1, 0.1, 0.95, 1.0)),
    Photo("coffee", "skimage.data", "coffee.png", Box(0.13, 0.0, 0.8, 1.0)),
    Photo("cat", "skimage.data", "chelsea.png", Box(0.12, 0.0, 0.9, 1.0)),
    Photo("rocket", "skimage.data", "rocket.jpg", Box(0.21, 0.1, 0.81, 1.0)),
    Photo("galaxies", "skimage.data", "hubble_deep_field.jpg", Box(0.5, 0.4, 0.9, 0.86)),
    Photo("retina", "skimage.data", "retina.jpg", Box(0.0, 0.0, 1.0, 1.0)),
    Photo("tissue", "skimage.data", "ihc.png", Box(0.37, 0.5, 0.87, 1.0)),
    Photo("pagoda", "sklearn.datasets.images", "china.jpg", Box(0.05, 0.02, 0.65, 0.92)),
    Photo("flower", "sklearn.datasets.images", "flower.jpg", Box(0.22, 0.12, 0.75, 0.91)),
)


def build(dataset: str, split: str) -> Dataset:
    """Images and labels of an embedded data set.

    Labels cycle through the classes; the first ten of ``photos10``'s train split show each photo's
    subject whole. No crop is in both splits. Raises `ConfigError` if data set or split is unknown,
    and `DataError` if the data set is not an embedded one, or the package lacks a picture.
    """
    catalogue.check_split(dataset, split)
    if dataset not in BUILDERS:
        raise DataError(
            f"Data set '{dataset}' is not embedded; choose one of {', '.join(BUILDERS)}."
        )
    return Dataset(*BUILDERS[dataset](split), dataset, split, origin="embedded")


def described(dataset: str) -> str:
    """Say in words what a data set's images are."""
    photos = "crops of photos that ship with scikit-image and scikit-learn"
    return "digits that ship with scikit-learn" if dataset == "digits" else photos


def write(path: FilePath, dataset: str, split: str) -> None:
    """Build an embedded data set and save it with its provenance."""
    arrays.save(path, build(dataset, split))


@cache
def _photo(photo: Photo, side: int | None) -> Image.Image:
    """Open a photo as RGB; its shorter side is scaled to `side` pixels if it is longer."""
    try:
        with as_file(files(photo.package) / photo.file) as path, Image.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, ModuleNotFoundError) as error:
        package = photo.package.partition(".")[0]
        raise DataError(
            f"The installed {package} lacks {photo.file} ({error}); install the version that "
            f"requirements.lock names."
        ) from error
    shorter = min(picture.size)
    if side is None or shorter <= side:
        return picture
    width, height = (round(length * side / shorter) for length in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _cut(picture: Image.Image, box: Box, side: int) -> np.ndarray:
    tile = picture.resize((side, side), Image.Resampling.LANCZOS, box=box)
    return np.asarray(tile).transpose(2, 0, 1)


def _squares(region: Box, count: int, low: float, high: float) -> list[Box]:
    """`count` different squares in `region`, their sides `low` to `high` of its shorter side."""
    from scipy.stats.qmc import Halton

    width, height = region.right - region.left, region.bottom - region.top
    found: dict[Box, None] = {}
    for size, across, down in Halton(d=3, scramble=False).random(4 * count):
        side = round((low + (high - low) * size) * min(width, height))
        left = round(region.left + across * (width - side))
        top = round(region.top + down * (height - side))
        found[Box(left, top, left + side, top + side)] = None
    return list(found)[:count]


def _tiles(
    picture: Image.Image, first: Box, region: Box, count: int, *sides: float
) -> list[np.ndarray]:
    """`first`, then the squares of `region` with most contrast, in their original order."""
    drawn = _squares(region, 2 * count, *sides)
    tiles = [_cut(picture, box, 32) for box in drawn]
    by_contrast = np.argsort([-tile.std() for tile in tiles], kind="stable")
    kept = sorted(by_contrast[: count - 1].tolist())
    return [_cut(picture, first, 32), *(tiles[k] for k in kept)]


def _interleave(per_class: list[list[np.ndarray]], split: str) -> tuple[np.ndarray, np.ndarray]:
    """Every fifth sample of a class for test, the others for train, class after class."""
    test = split == "test"
    parts = [[t for k, t in enumerate(tiles) if (k % 5 == 4) == test] for tiles in per_class]
    images = np.stack([tile for row in zip(*parts, strict=True) for tile in row])
    return images, np.tile(np.arange(len(parts), dtype=np.int64), len(parts[0]))


@cache
def _crops(side: int, rows: int, columns: int, count: int, *sides: float) -> list[list[np.ndarray]]:
    """`count` crops of each of a photo's regions, `rows` times `columns` that do not overlap."""
    per_class = []
    for row, column, photo in product(range(rows), range(columns), PHOTOS):
        picture = _photo(photo, side)
        cell = Box(column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
        region = cell.scaled(*picture.size)
        width = region.right - region.left
        top = (region.top + region.bottom - width) / 2
        middle = Box(region.left, top, region.right, top + width)
        first = middle if columns > 1 else photo.portrait.scaled(*picture.size)
        per_class.append(_tiles(picture, first, region, count, *sides))
    return per_class


def _photos10(split: str) -> Built:
    """Ten photos; 2,000 crops to train and 500 to test."""
    crops = _crops(160, 1, 1, 250, 0.35, 0.85)
    return *_interleave(crops, split), [photo.name for photo in PHOTOS]


def _numbered(parts: int) -> list[str]:
    return [f"{photo.name} {number}" for number, photo in product(range(parts), PHOTOS)]


def _photos100(split: str) -> Built:
    """Ten regions of each of ten photos; 4,000 crops to train and 1,000 to test."""
    return *_interleave(_crops(400, 2, 5, 50, 0.5, 0.95), split), _numbered(10)


def _photos224(split: str) -> Built:
    """A hundred crops of each of ten photos, each its own class: 1,000 images of 224x224."""
    del split
    views = []
    for photo in PHOTOS:
        whole = Box(0, 0, *_photo(photo, None).size)
        drawn = _squares(whole, CROPS - 1, 0.35, 0.75)
        views.append([photo.portrait.scaled(whole.right, whole.bottom), *drawn])
    images = [
        _cut(_photo(photo, None), boxes[number], 224)
        for number in range(CROPS)
        for photo, boxes in zip(PHOTOS, views, strict=True)
    ]
    return np.stack(images), np.arange(len(images), dtype=np.int64), _numbered(CROPS)


def _digits(split: str) -> Built:
    """scikit-learn's 1,797 digits of 8x8 in MNIST's format: 20x20 amid 28x28."""
    from sklearn.datasets import load_digits

    source = load_digits()
    chosen = slice(DIGITS_TRAIN, None) if split == "test" else slice(DIGITS_TRAIN)
    small = np.round(source.images[chosen] * (255 / 16)).astype(np.uint8)
    images = np.zeros((len(small), 1, 28, 28), np.uint8)
    for image, digit in zip(images, small, strict=True):
        large = Image.fromarray(digit).resize((20, 20), Image.Resampling.BICUBIC)
        image[0, 4:24, 4:24] = np.asarray(large)
    return images, source.target[chosen].astype(np.int64), [str(digit) for digit in range(10)]


BUILDERS: dict[str, Callable[[str], Built]] = {
    "digits": _digits, "photos10": _photos10, "photos100": _photos100, "photos224": _photos224,
}  # fmt: skip
