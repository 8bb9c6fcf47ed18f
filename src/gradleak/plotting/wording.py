"""Text of figures: numbers, classes, and descriptions of images and runs."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from gradleak.data import embedded
from gradleak.data.targets import TargetSet
from gradleak.plotting.style import number

MINUS = "\N{MINUS SIGN}"
FAILED = " \N{MULTIPLICATION SIGN}: the run failed, as far as the attacker can tell."
ABSENT = " \N{EN DASH}: not among the experiments."
# Data set that an embedded one replaces.
IN_PLACE_OF = {
    "digits": "MNIST",
    "photos10": "CIFAR-10",
    "photos100": "CIFAR-100",
    "photos224": "ImageNet",
}
SPLITS = {"train": "training", "val": "validation", "test": "test"}
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST", "imagenet": "ImageNet"}


def signed(value: float, form: str = "") -> str:
    """Format a number with a true minus sign."""
    return f"{value:{form}}".replace("-", MINUS)


def typical(median: float) -> str:
    """Format a median in which failed runs count as infinite."""
    return f"median {number(median)}" if np.isfinite(median) else "median failed"


def decibel(value: float) -> str:
    """Format a PSNR; exact images have 300 by convention."""
    return f"{signed(round(value, 1) + 0.0, '.1f')} dB"


def similarity(value: float) -> str:
    """Format an SSIM, keeping values below 1 distinct from 1."""
    text = f"{value:.2f}" if value >= 1 or value < 0.995 else f"{value:.4f}"
    if value < 1 and text == "1.0000":
        text = ">\N{THIN SPACE}0.9999"
    return text.replace("-", MINUS)


def shortened(name: str, most: int = 18) -> str:
    """Class name, truncated to `most` characters."""
    name = name.replace("_", " ")
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def is_embedded(originals: TargetSet) -> bool:
    """True if the images are those that ship with the libraries."""
    return originals.source["origin"].startswith("embedded")


def _source(originals: TargetSet) -> str:
    dataset = originals.source["dataset"]
    return f"{NAMES.get(dataset, dataset)} {SPLITS.get(originals.source['split'], 'test')}"


def _origin(originals: TargetSet) -> str:
    dataset = originals.source["dataset"]
    return (
        f"embedded {embedded.described(dataset)}, in place of {IN_PLACE_OF.get(dataset, 'photos')}"
    )


def _enlarged(originals: TargetSet) -> str:
    times = originals.enlarged
    return f", each pixel repeated {times} times along both sides" if times > 1 else ""


def listed(originals: TargetSet, batches: Sequence[int] | None = None) -> str:
    """List the images of all or some batches by their numbers in the data set."""
    batches = range(len(originals.indices)) if batches is None else batches
    indices = [int(i) for batch in batches for i in originals.indices[batch]]
    *first, last = map(str, indices)
    numbers = " and ".join(filter(None, [", ".join(first), last]))
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        numbers = f"{first[0]} to {last}"
    plural = "s" * (len(indices) > 1)
    return f"{_source(originals)} image{plural} {numbers}{_enlarged(originals)}"


def described(originals: TargetSet, batches: Sequence[int] | None = None) -> str:
    """Describe the images and, for embedded ones, the data set they replace."""
    said = listed(originals, batches)
    return f"{said}, {_origin(originals)}" if is_embedded(originals) else said


def each(sets: Iterable[TargetSet], batches: Sequence[int] | None = None) -> str:
    """List the images of several sets, without repetition."""
    found = {}
    for one in sets:
        dataset = one.source["dataset"]
        wanted = f" (for {IN_PLACE_OF[dataset]})" if dataset in IN_PLACE_OF else ""
        found[f"{listed(one, batches)}{wanted}"] = one
    origin = "embedded, in place of the paper's: " if any(map(is_embedded, found.values())) else ""
    return f"{origin}{'; '.join(found)}"


def counted(originals: TargetSet, batch: int | None, drawn: str) -> str:
    """State the number and kind of images in a batch (None: each), and how they were `drawn`."""
    said = f"{originals.size:,} {_source(originals)} images"
    said += " a batch" if batch is None else f" (batch {batch})"
    said += _enlarged(originals) + (f", {drawn}" if drawn else "")
    return f"{said}; {_origin(originals)}" if is_embedded(originals) else said


def precision(tables: Iterable[pd.DataFrame]) -> str:
    """Describe the precision of the gradients."""
    return " and ".join(sorted({name for table in tables for name in table["precision"]}))
