"""Words of figures: numbers, classes, and which images and runs are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gradleak.figures.reader import Answer, Panel, precision
from gradleak.figures.style import number
from gradleak.targets import TargetSet

MINUS = "\N{MINUS SIGN}"
FAILED = " \N{MULTIPLICATION SIGN}: the run failed, as far as the attacker can tell."
ABSENT = " \N{EN DASH}: not among the experiments."
# What an embedded data set stands in for.
IN_PLACE_OF = {
    "digits": "MNIST",
    "photos10": "CIFAR-10",
    "photos100": "CIFAR-100",
    "photos224": "ImageNet",
}
SPLITS = {"train": "training", "val": "validation", "test": "test"}
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST", "imagenet": "ImageNet"}


def signed(value: float, form: str = "") -> str:
    """A number with a true minus sign."""
    return f"{value:{form}}".replace("-", MINUS)


def typical(median: float) -> str:
    """Words for a median in which failed runs count as infinite."""
    return f"median {number(median)}" if np.isfinite(median) else "median failed"


def caption(answer: Answer | None, metric: str = "mse") -> str:
    """Words for a metric of an answer: its value, ``failed``, or nothing where it was not run."""
    if answer is None:
        return ""
    return number(answer.value(metric)) if answer.ok else answer.status.replace("_", " ")


def decibel(value: float) -> str:
    """PSNR in words; that of an exact image is 300 by convention."""
    return f"{signed(round(value, 1) + 0.0, '.1f')} dB"


def similarity(value: float) -> str:
    """SSIM in words; below 1 it stays below 1."""
    text = f"{value:.2f}" if value >= 1 or value < 0.995 else f"{value:.4f}"
    if value < 1 and text == "1.0000":
        text = ">\N{THIN SPACE}0.9999"
    return text.replace("-", MINUS)


def shortened(name: str, most: int = 18) -> str:
    """Class in words, cut where it has more than `most` characters."""
    name = name.replace("_", " ")
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def is_embedded(originals: TargetSet) -> bool:
    """Whether the images are those that ship with the libraries."""
    return originals.source["origin"].startswith("embedded")


def _source(originals: TargetSet) -> str:
    """Data set and split, in words."""
    dataset = originals.source["dataset"]
    return f"{NAMES.get(dataset, dataset)} {SPLITS.get(originals.source['split'], 'test')}"


def _origin(originals: TargetSet) -> str:
    """What embedded images are, and for which they stand in."""
    dataset = originals.source["dataset"]
    photos = "crops of photos that ship with scikit-image and scikit-learn"
    what = "digits that ship with scikit-learn" if dataset == "digits" else photos
    return f"embedded {what}, in place of {IN_PLACE_OF.get(dataset, 'photos')}"


def _enlarged(originals: TargetSet) -> str:
    times = originals.enlarged
    return f", each pixel repeated {times} times along both sides" if times > 1 else ""


def listed(originals: TargetSet, batches: Sequence[int] | None = None) -> str:
    """Which images all or some batches have, by their numbers in the data set."""
    batches = range(len(originals.indices)) if batches is None else batches
    indices = [int(i) for batch in batches for i in originals.indices[batch]]
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        numbers = f"{indices[0]} to {indices[-1]}"
    else:
        *first, last = map(str, indices)
        numbers = " and ".join(filter(None, [", ".join(first), last]))
    plural = "s" * (len(indices) > 1)
    return f"{_source(originals)} image{plural} {numbers}{_enlarged(originals)}"


def described(originals: TargetSet, batches: Sequence[int] | None = None) -> str:
    """Which images these are and, of embedded ones, what they stand in for."""
    said = listed(originals, batches)
    return f"{said}, {_origin(originals)}" if is_embedded(originals) else said


def each(sets: Iterable[TargetSet], batches: Sequence[int] | None = None) -> str:
    """Which images several sets have, each once."""
    found = {}
    for one in sets:
        dataset = one.source["dataset"]
        wanted = f" (for {IN_PLACE_OF[dataset]})" if dataset in IN_PLACE_OF else ""
        found[f"{listed(one, batches)}{wanted}"] = one
    origin = "embedded, in place of the paper's: " if any(map(is_embedded, found.values())) else ""
    return f"{origin}{'; '.join(found)}"


def counted(originals: TargetSet, batch: int | None, drawn: str) -> str:
    """How many images a batch (None: each) has, of which kind, and how they were `drawn`."""
    said = f"{originals.size:,} {_source(originals)} images"
    said += " a batch" if batch is None else f" (batch {batch})"
    said += _enlarged(originals) + (f", {drawn}" if drawn else "")
    return f"{said}; {_origin(originals)}" if is_embedded(originals) else said


def footer(
    words: Mapping[str, Any], panels: Sequence[Panel], images: str, scale: str, first: str
) -> str:
    """What a reader has to know of the runs, behind the sentences `first` of the figure."""
    said = f"{first} {words.get('note', '')} Images: {images}."
    return f"{said} Scale {scale}; gradients in {precision(panel.table for panel in panels)}."
