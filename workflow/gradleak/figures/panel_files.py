"""What figures of batches show: in the place of each image, what each attack gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gradleak import targets
from gradleak.artifacts import opened, read_csv
from gradleak.attacks import reconstruction_files
from gradleak.errors import ArtifactError
from gradleak.figures.pictures import DATASETS, DIGITS, is_embedded
from gradleak.metrics.image import assignment
from gradleak.targets import TargetSet

NONE = -1  # the place of an image that an attack does not give
# Metrics that figures show; the last of attacks that go by class alone.
SHOWN = ("psnr", "ssim", "ssim_gauss", "psnr_class_mean")
# Columns of scores that panels are made of.
READ = ("model", "seed", "batch", "answer", "index", "metric", "value", "precision")
SEED, ANSWER = 0, 0
MOST_PIXELS = 224  # of a side, beyond what a page can show
# What an embedded data set stands in for.
IN_PLACE_OF = {
    "digits": "MNIST",
    "photos10": "CIFAR-10",
    "photos100": "CIFAR-100",
    "photos224": "ImageNet",
}
SPLITS = {"train": "training", "val": "validation"}
NAMES = {**DATASETS, "imagenet": "ImageNet"}


class Stored:
    """A reconstruction file that is read image by image: one with 1,000 photos holds 600 MB.

    Parameters
    ----------
    path
        The file, as `gradleak.attacks.run` writes it.

    Raises
    ------
    ArtifactError
        If it is missing or damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.runs = reconstruction_files.read_runs(path)

    def images(self, model: str, batch: int, part: slice) -> np.ndarray:
        """Images `part` of the answer to a batch, (k, C, H, W), NaN where there is none."""
        with opened(self.path) as file:
            stored = file.get_slice(f"{model}/images")
            if len(stored.get_shape()) != 7:
                raise ValueError(f"array '{model}/images' is of shape {stored.get_shape()}")
            return np.asarray(stored[SEED, batch, ANSWER, part])


@dataclass(frozen=True)
class Panel:
    """One attack on one network under one defence.

    Attributes
    ----------
    title
        Its heading.
    targets
        Originals.
    stored, model
        Its reconstructions, and the network's name in their file.
    scores
        Its rows of the score file.
    """

    title: str
    targets: TargetSet
    stored: Stored
    model: str
    scores: pd.DataFrame

    def record(self, batch: int) -> Mapping[str, Any] | None:
        """What the file says of the answer to a batch; None where the attack was not run."""
        for entry in self.stored.runs:
            place = (entry["model"], entry["seed"], entry["batch"], entry["answer"])
            if place == (self.model, SEED, batch, ANSWER):
                return entry
        return None

    def reason(self, batch: int) -> str:
        """Why there is nothing at all of a batch, or nothing to say."""
        entry = self.record(batch)
        if entry is None:
            return f"not run on batch {batch}"
        return "" if entry["status"] == "ok" else str(entry["reason"] or entry["status"])

    def partial(self, batch: int) -> bool:
        """Whether the attack is after some classes alone."""
        entry = self.record(batch)
        return entry is not None and bool(entry.get("partial"))

    def by_class(self, batch: int) -> bool:
        """Whether the attack gives an image for each class."""
        entry = self.record(batch)
        return entry is not None and bool(entry.get("classes"))

    def kept(self, batch: int) -> np.ndarray | None:
        """First image (C, H, W) that the file holds of a batch, even of a run that failed."""
        if self.record(batch) is None:
            return None
        image = self.stored.images(self.model, batch, slice(0, 1))[0]
        return self.targets.pixels(image) if np.isfinite(image).all() else None

    def images(self, batch: int, positions: Sequence[int]) -> list[np.ndarray | None]:
        """Image (C, H, W) in the place of each of these originals, in [0, 1] less rounding.

        That is the image of its class where the attack gives classes, else the one that the
        least sum of MSEs matches with it; None where there is none.
        """
        places = self._places(batch)
        read: dict[int, np.ndarray | None] = {NONE: None}
        for place in {int(places[k]) for k in positions} - {NONE}:
            image = self.stored.images(self.model, batch, slice(place, place + 1))[0]
            finite = bool(np.isfinite(image).all())
            read[place] = self.targets.pixels(image) if finite else None
        return [read[int(places[k])] for k in positions]

    def _places(self, batch: int) -> np.ndarray:
        """Place in the answer of each original's image (K,), `NONE` where there is none."""
        entry = self.record(batch)
        if entry is None or entry["status"] != "ok":
            return np.full(self.targets.size, NONE)
        if entry.get("classes"):
            place = {int(label): k for k, label in enumerate(entry["classes"])}
            return np.array([place.get(int(label), NONE) for label in self.targets.labels[batch]])
        found = self.stored.images(self.model, batch, slice(None))
        kept = np.flatnonzero(np.isfinite(found).all(axis=(1, 2, 3)))
        if len(kept) != self.targets.size:
            # One image for the whole batch stands for each of its images.
            return np.full(self.targets.size, kept[0] if len(kept) else NONE)
        return kept[assignment(self.targets.inputs(batch), found[kept])]

    def values(self, batch: int) -> pd.DataFrame:
        """A row for each original of a batch, columns `SHOWN`, NaN without image."""
        rows = self.scores
        rows = rows[(rows["batch"] == batch) & rows["metric"].isin(SHOWN)]
        wide = rows.pivot_table(index="index", columns="metric", values="value", dropna=False)
        wide = wide.reindex(index=self.targets.indices[batch], columns=list(SHOWN))
        return wide.astype(float).reset_index(drop=True)

    @property
    def precision(self) -> str:
        """Precision of the gradients."""
        return " and ".join(sorted(set(self.scores["precision"])))


def read(files: Mapping[str, Any], words: Mapping[str, Any]) -> list[Panel]:
    """Panels of a figure.

    Parameters
    ----------
    files
        ``targets``, ``reconstructions`` and ``scores``: one file of each for each panel.
    words
        ``panels``: ``title`` and ``model`` of each.

    Raises
    ------
    ArtifactError
        If there are no panels, or a file lacks what its panel shows.
    """
    if not words.get("panels"):
        raise ArtifactError(
            "Nothing to draw; name models and attacks of the figure in the experiments of "
            "config.yaml."
        )
    sets = {path: targets.read(path) for path in dict.fromkeys(files["targets"])}
    each = zip(
        words["panels"], files["targets"], files["reconstructions"], files["scores"], strict=True
    )
    return [
        Panel(entry["title"], sets[chosen], Stored(found), entry["model"], _scores(score, entry))
        for entry, chosen, found, score in each
    ]


def _scores(path: str, entry: Mapping[str, Any]) -> pd.DataFrame:
    table = read_csv(path, READ, keep_default_na=False)
    table = table[
        (table["model"] == entry["model"]) & (table["seed"] == SEED) & (table["answer"] == ANSWER)
    ]
    if table.empty:
        raise ArtifactError(
            f"{path} has no rows of {entry['model']}; delete it and ask Snakemake for it again."
        )
    return table.assign(value=pd.to_numeric(table["value"], errors="coerce"))


def describe(originals: TargetSet, batch: int | None, drawn: str) -> str:
    """Which images a batch has, in words.

    Parameters
    ----------
    originals, batch
        The batch; None for all of them.
    drawn
        How its images and labels were chosen, such as ``drawn at random``.
    """
    dataset = originals.source["dataset"]
    split = SPLITS.get(originals.source["split"], "test")
    said = f"{originals.size:,} {NAMES.get(dataset, dataset)} {split} images"
    said += " a batch" if batch is None else f" (batch {batch})"
    if originals.enlarged > 1:
        said += f", each pixel repeated {originals.enlarged} times along both sides"
    if drawn:
        said += f", {drawn}"
    if not is_embedded(originals):
        return said
    crops = "crops of photos that ship with scikit-image and scikit-learn, in place of "
    stand_in = DIGITS if dataset == "digits" else crops + IN_PLACE_OF.get(dataset, "photos")
    return f"{said}; embedded {stand_in}"


def describe_single(originals: TargetSet, batches: Sequence[int]) -> str:
    """Which image each of these batches of one has, and what it stands in for, in words."""
    indices = [int(originals.indices[batch, 0]) for batch in batches]
    dataset = originals.source["dataset"]
    split = SPLITS.get(originals.source["split"], "test")
    numbers = ", ".join(map(str, indices))
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        numbers = f"{indices[0]} to {indices[-1]}"
    said = f"{NAMES.get(dataset, dataset)} {split} image{'s' * (len(indices) > 1)} {numbers}"
    if originals.enlarged > 1:
        said += f", each pixel repeated {originals.enlarged} times along both sides"
    return f"{said} (for {IN_PLACE_OF[dataset]})" if dataset in IN_PLACE_OF else said


def footer(
    words: Mapping[str, Any], panels: Sequence[Panel], batch: int | None, scale: str, first: str
) -> str:
    """What a reader has to know of the runs, behind the sentences `first` of the figure.

    Parameters
    ----------
    words
        ``note`` of the attacks, and ``drawn`` as for `describe`.
    panels
        As drawn.
    batch
        The batch that is shown; None for all of them.
    scale
        Scale of the run.
    first
        Sentences of the figure itself.
    """
    images = describe(panels[0].targets, batch, words.get("drawn", ""))
    precision = " and ".join(sorted({panel.precision for panel in panels}))
    return (
        f"{first} {words.get('note', '')} Images: {images}. Scale {scale}; gradients in "
        f"{precision}."
    )


def decibel(value: float) -> str:
    """PSNR in words; that of an exact image is 300 by convention."""
    return f"{round(value, 1) + 0.0:.1f} dB".replace("-", "\N{MINUS SIGN}")


def similarity(value: float) -> str:
    """SSIM in words; below 1 it stays below 1."""
    text = f"{value:.2f}" if value >= 1 or value < 0.995 else f"{value:.4f}"
    if value < 1 and text == "1.0000":
        text = ">\N{THIN SPACE}0.9999"
    return text.replace("-", "\N{MINUS SIGN}")


def shortened(name: str, most: int = 18) -> str:
    """Class in words, cut where it has more than `most` characters."""
    name = name.replace("_", " ")
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def displayed(image: np.ndarray) -> np.ndarray:
    """The image itself, or a smaller one where it has more pixels than a page can show."""
    return image if image.shape[-1] <= MOST_PIXELS else shrunk(image, MOST_PIXELS)


def shrunk(image: np.ndarray, side: int) -> np.ndarray:
    """Image (C, H, W) at another size (C, side, side): the mean over each new pixel's area."""
    rows, columns = (_areas(count, side) for count in image.shape[1:])
    out: np.ndarray = rows @ image.astype(np.float64) @ columns.T
    return out


def _areas(count: int, side: int) -> np.ndarray:
    """Share (side, count) of each new pixel that each old pixel covers; rows add up to 1."""
    edges = np.arange(side + 1) * (count / side)
    low = np.maximum(edges[:-1, None], np.arange(count))
    high = np.minimum(edges[1:, None], np.arange(1, count + 1))
    out: np.ndarray = np.clip(high - low, 0.0, None) * (side / count)
    return out


def evenly(count: int, most: int) -> list[int]:
    """`most` positions of `count`, spread evenly; all of them if there are no more."""
    if count <= most:
        return list(range(count))
    return [round(k * (count - 1) / (most - 1)) for k in range(most)]


def ranked(values: Iterable[float]) -> list[int]:
    """Positions that have a value, from the best to the worst; ties in their order."""
    array = np.array(list(values), dtype=float)
    return [int(k) for k in np.argsort(-array, kind="stable") if np.isfinite(array[k])]
