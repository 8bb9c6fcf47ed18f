"""Known data sets, and the embedded stand-in of each real one.

A stand-in has its own name, so that no row or figure can be mistaken for the real images.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gradleak.errors import ConfigError

Source = Literal["embedded", "official", "own_folder"]
IMAGES = ("embedded", "real")


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set that are known before any of its files is read."""

    id: str  # name in config, in paths and in tables
    splits: tuple[str, ...]  # its parts, each one file
    channels: int  # channels of a stored image; height and width in pixels
    height: int
    width: int
    classes: int  # number of classes
    source: Source  # how its files are made
    counts: tuple[int, ...]  # images of each split, as published: your own folder may have fewer
    stand_in: str | None = None  # the embedded data set used in its place; None for an embedded one

    def count(self, split: str) -> int:
        """Number of images of a split."""
        return self.counts[self.splits.index(split)]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of one image."""
        return self.channels, self.height, self.width


_BOTH = ("train", "test")
CATALOGUE: dict[str, DatasetInfo] = {
    info.id: info
    for info in (
        DatasetInfo("mnist", _BOTH, 1, 28, 28, 10, "official", (60_000, 10_000), "digits"),
        DatasetInfo("cifar10", _BOTH, 3, 32, 32, 10, "official", (50_000, 10_000), "photos10"),
        DatasetInfo("cifar100", _BOTH, 3, 32, 32, 100, "official", (50_000, 10_000), "photos100"),
        DatasetInfo("imagenet", ("val",), 3, 256, 256, 1000, "own_folder", (50_000,), "photos224"),
        DatasetInfo("digits", _BOTH, 1, 28, 28, 10, "embedded", (1_437, 360)),
        DatasetInfo("photos10", _BOTH, 3, 32, 32, 10, "embedded", (2_000, 500)),
        DatasetInfo("photos100", _BOTH, 3, 32, 32, 100, "embedded", (4_000, 1_000)),
        DatasetInfo("photos224", ("val",), 3, 224, 224, 1000, "embedded", (1_000,)),
    )
}


def info(dataset: str) -> DatasetInfo:
    """Entry of a data set; `ConfigError` for an unknown name."""
    if dataset not in CATALOGUE:
        raise ConfigError(f"Data set '{dataset}' is unknown; choose one of {', '.join(CATALOGUE)}.")
    return CATALOGUE[dataset]


def check_split(dataset: str, split: str) -> None:
    """Raise `ConfigError` if a data set or its split is unknown."""
    splits = info(dataset).splits
    if split not in splits:
        raise ConfigError(
            f"Data set '{dataset}' has no split '{split}'; choose one of {', '.join(splits)}."
        )


def resolve(dataset: str, images: str) -> str:
    """Id of the data set used: of `dataset` itself, or of its stand-in if `images` is ``embedded``.

    Raises `ConfigError` if the data set or the setting is unknown.
    """
    if images not in IMAGES:
        raise ConfigError(f"images: '{images}' is unknown; choose one of {', '.join(IMAGES)}.")
    stand_in = info(dataset).stand_in
    return stand_in if images == "embedded" and stand_in else dataset


def shrunk(counts: Mapping[str, int], there: int) -> dict[str, int]:
    """Divide the `there` images of a split into parts of these sizes, smaller ones if they are few.

    All parts shrink in proportion, and round down.
    """
    share = min(1.0, there / sum(counts.values()))
    return {part: int(share * count) for part, count in counts.items()}


def pairs(source: Source) -> list[tuple[str, str]]:
    """All (data set, split) pairs that are made from `source`."""
    return [(d.id, split) for d in CATALOGUE.values() if d.source == source for split in d.splits]


def pairs_pattern(wanted: Iterable[tuple[str, str]]) -> str:
    """Regular expression for ``{dataset}`` that admits only the `wanted` pairs.

    A look-ahead at the rest of the file name ties each data set to its own splits, which two
    constraints on two wildcards cannot do. Without any pair, the expression matches nothing.
    """
    options = [rf"{re.escape(d)}(?=-{re.escape(s)}\.safetensors)" for d, s in wanted]
    return f"(?:{'|'.join(options)})" if options else r"(?!)"
