"""Pieces of figures that show images: a page measured in inches, pictures, values under them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.figures.style import GREY, PAGE, new, number
from gradleak.targets import TargetSet

# Points from an image's edge to the baseline of each line under it, and the size of its text.
LINES = ((-7.5, 6.0), (-14.0, 5.5), (-20.0, 5.5))
SMALL = 5.5  # points: words of the footer
FOOTER_LINE = SMALL * 1.35 * 1.17 / 72  # inches
TITLE = 0.27  # inches that the title takes
PER_INCH = 25  # characters of the footer
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST"}
# What stands in for a data set: in words, and for which one; anything else is photos.
DIGITS = "digits that ship with scikit-learn, in place of MNIST"
PHOTOS = "crops of photos that ship with scikit-image and scikit-learn, in place of CIFAR-10"


@dataclass(frozen=True)
class Page:
    """A figure whose places are inches from its left and upper edges.

    Attributes
    ----------
    figure, width, height
        The figure and its size.
    """

    figure: Figure
    width: float
    height: float

    @staticmethod
    def new(title: str, footer: str, depth: float, width: float = PAGE) -> Page:
        """Page with a title, `depth` inches for what is drawn below it, and a footer.

        The drawing begins `TITLE` inches below the upper edge. To be called within `styled`.
        """
        lines = textwrap.wrap(" ".join(footer.split()), int(width * PER_INCH))
        height = TITLE + depth + FOOTER_LINE * len(lines) + 0.08
        page = Page(new(width, height), width, height)
        page.text(0.06, 0.06, title, va="top", fontsize=8, weight="bold")
        page.text(
            0.06,
            TITLE + depth + 0.04,
            "\n".join(lines),
            va="top",
            fontsize=SMALL,
            color=GREY,
            linespacing=1.35,
        )
        return page

    def text(self, left: float, top: float, words: str, **style: Any) -> None:
        """Words at a place; `style` as for ``Figure.text``."""
        self.figure.text(left / self.width, 1 - top / self.height, words, **style)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes that fill a box."""
        box = (
            left / self.width,
            1 - (top + height) / self.height,
            width / self.width,
            height / self.height,
        )
        axes: Axes = self.figure.add_axes(box)
        return axes

    def picture(self, left: float, top: float, side: float) -> Axes:
        """Empty frame for an image."""
        axes = self.axes(left, top, side, side)
        frame(axes)
        return axes


def frame(axes: Axes) -> None:
    """Make axes a frame for an image: a thin line around, no ticks."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.3, color=GREY)


def draw_pixels(axes: Axes, image: np.ndarray) -> None:
    """Show an image (C, H, W), clipped to [0, 1]; one channel is grey."""
    pixels = np.clip(np.moveaxis(image, 0, -1), 0.0, 1.0)
    shown = pixels if pixels.shape[-1] == 3 else pixels[..., 0]
    axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")


def under(axes: Axes, *lines: str) -> None:
    """Write up to three lines under a picture, the first in black."""
    for place, words in enumerate(lines):
        drop, size = LINES[place]
        axes.annotate(
            words,
            (0.5, 0.0),
            (0.0, drop),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            fontsize=size,
            color=GREY if place else "black",
        )


def typical(median: float) -> str:
    """Words for a median in which failed runs count as infinite."""
    return f"median {number(median)}" if np.isfinite(median) else "median failed"


def median_of(table: pd.DataFrame) -> float:
    """Median of ``mse`` over runs; one that failed has the last rank, so it may be infinite."""
    if table.empty:
        return float("nan")
    return float(table["mse"].where(table["status"] == "ok", np.inf).fillna(np.inf).median())


def is_embedded(targets: TargetSet) -> bool:
    """Whether the images are the photos that ship with the libraries."""
    return targets.source["origin"].startswith("embedded")


def describe_images(targets: TargetSet, listed: Sequence[int] | None = None) -> str:
    """Which images these are, in words.

    Parameters
    ----------
    targets
        Originals.
    listed
        Batches that are meant, None for all.
    """
    batches = range(len(targets.indices)) if listed is None else listed
    indices = [int(i) for batch in batches for i in targets.indices[batch]]
    if len(indices) > 3 and indices == list(range(indices[0], indices[-1] + 1)):
        names = f"{indices[0]} to {indices[-1]}"
    else:
        *first, last = map(str, indices)
        names = " and ".join(filter(None, [", ".join(first), last]))
    split = {"train": "training", "test": "test"}.get(targets.source["split"], "")
    dataset = targets.source["dataset"]
    word = "images" if len(indices) > 1 else "image"
    if is_embedded(targets):
        origin = DIGITS if dataset == "digits" else PHOTOS
        return f"{dataset} {split} {word} {names}, embedded {origin}"
    return f"{DATASETS.get(dataset, dataset)} {split} {word} {names}"
