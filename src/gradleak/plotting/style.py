"""Style of all figures: sizes, fonts, colours, and reproducible files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gradleak.runtime.artifacts import atomic

COLUMN = 3.4  # inches, width of a text column
PAGE = 7.0  # inches, width of a page's text
DPI = 200  # of the PNG
LEAST = 5.0  # points: the smallest font that is legible in print at full width

# Okabe and Ito's palette, safe for colour blindness.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, YELLOW, GREY = "#56B4E9", "#D55E00", "#F0E442", "#666666"
# Not for data: reference lines, crossed-out and grouped items.
CROSS, GRID, SHADE = "#BBBBBB", "#DDDDDD", "#EEEEEE"
CYCLE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW)

SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.prop_cycle": cycler(color=CYCLE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 7.5,
    "figure.dpi": DPI,
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "grid.color": GRID,
    "grid.linewidth": 0.4,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "lines.markersize": 4,
    "mathtext.fontset": "dejavusans",
    "pdf.fonttype": 42,
    "xtick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.labelsize": 6.5,
    "ytick.major.width": 0.6,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style, ignoring the user's matplotlibrc."""
    with mpl.rc_context():
        mpl.rcdefaults()
        for key, value in SETTINGS.items():
            mpl.rcParams[key] = value  # type: ignore[index]
        yield


def new(width: float, height: float) -> Figure:
    """Make an empty figure of `width` by `height` inches; call it within `styled`."""
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, pdf: str | os.PathLike[str]) -> None:
    """Write `figure` as `pdf` and, beside it, as PNG; equal figures give equal bytes.

    Raises `ArtifactError` if a file cannot be written; no partial file is left.
    """
    for form, unset in (("pdf", "CreationDate"), ("png", "Software")):
        with styled(), atomic(Path(pdf).with_suffix(f".{form}")) as temporary:
            figure.savefig(temporary, format=form, dpi=DPI, metadata={unset: None})


def number(value: float) -> str:
    """Format an error with three significant digits: 0.150, 25.3, 123; else 1.2e−12."""
    if value == 0:
        return "0"
    text = f"{value:#.3g}"
    if "e" in text:
        mantissa, exponent = f"{value:.1e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    return text.rstrip(".").replace("-", "\N{MINUS SIGN}")
