"""One style for all figures: sizes, fonts, colours, and files with equal bytes for equal input."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gradleak.artifacts import atomic

COLUMN = 3.4  # width of a text column, inches
PAGE = 7.0  # width of a page's text, inches
DPI = 200  # of the PNG
LEAST = 5.0  # points: the smallest words, which a print as wide as the figure leaves legible

# Okabe and Ito's colours, told apart with any kind of colour vision.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, YELLOW, GREY = "#56B4E9", "#D55E00", "#F0E442", "#666666"
# Not for data: lines behind them, what is crossed out, what groups.
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
    """Draw in the style; settings of a user's matplotlibrc have no say."""
    with mpl.rc_context():
        mpl.rcdefaults()
        for key, value in SETTINGS.items():
            mpl.rcParams[key] = value  # type: ignore[index]
        yield


def new(width: float, height: float) -> Figure:
    """Empty figure of `width` by `height` inches, to be called within `styled`."""
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, pdf: str | os.PathLike[str]) -> None:
    """Write `figure` as `pdf` and, beside it, as PNG; equal figures give equal bytes.

    Raises
    ------
    ArtifactError
        If a file cannot be written; none is left half-written.
    """
    target = Path(pdf)
    with styled():
        with atomic(target) as temporary:
            figure.savefig(temporary, format="pdf", metadata={"CreationDate": None})
        with atomic(target.with_suffix(".png")) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def number(value: float) -> str:
    """Short text for an error, three significant digits: 0.150, 25.3, 123; else 1.2e−12."""
    if value == 0:
        return "0"
    text = f"{value:#.3g}"
    if "e" in text:
        mantissa, exponent = f"{value:.1e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    return text.rstrip(".").replace("-", "\N{MINUS SIGN}")
