"""What a key-lock keeps from attackers who know something of it, or fit what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gradleak.figures import fedkl_pictures, missing, panel_files
from gradleak.figures.panel_files import Panel, displayed
from gradleak.figures.pictures import SMALL, TITLE, Page, draw_pixels, is_embedded
from gradleak.figures.style import (
    BLUE,
    GREEN,
    GREY,
    LEAST,
    ORANGE,
    PAGE,
    PINK,
    RED,
    SKY,
    YELLOW,
    styled,
)
from gradleak.tables.fedkl_adaptive import median, runs

# Inches: margins, gaps, headings, heights of panels, ticks below, and the row of pictures.
LEFT, GAP, HEAD, HIGH, BETWEEN, TICKS = 1.1, 0.12, 0.28, 1.05, 0.1, 0.3
ABOVE, UNDER, WIDEST = 0.26, 0.26, 0.8
# Colour and mark of each case, in their order.
LOOKS = (
    (BLUE, "o"),
    (GREY, "s"),
    (RED, "D"),
    (SKY, "X"),
    (GREEN, "^"),
    (PINK, "v"),
    (ORANGE, "P"),
    (YELLOW, "*"),
)
METRIC = "psnr"
SPAN = (-10.0, 80.0)  # dB that are shown; what lies beyond is drawn at the edge
MINUS = "\N{MINUS SIGN}"
# Share of an axis' height that is kept for medians above, and for failed runs below the points.
ROOM_ABOVE, ROOM_BELOW = 0.26, 0.16


@dataclass(frozen=True)
class Cell:
    """Runs of one attack in one case.

    Attributes
    ----------
    row, method, case
        Which network and data set, and what stands in for it; which attack; what the attacker has.
    values
        PSNR of each run, NaN where it failed.
    panel
        Its images.
    """

    row: tuple[str, str]
    method: str
    case: str
    values: pd.Series
    panel: Panel


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        As `gradleak.figures.panel_files.read` takes them.
    words
        ``title``, ``note``, ``cases``: what the attacker has, in order, with the words for an axis,
        first the case without lock; ``panels`` with ``network``, ``dataset``, ``method``, ``case``.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows.
    """
    cells = [
        Cell(
            (f"{entry['network']}, {entry['dataset']}".replace(", ", ",\n"), _stand_in(panel)),
            entry["method"],
            entry["case"],
            runs(path, entry["model"])[METRIC],
            panel,
        )
        for entry, panel, path in zip(
            words["panels"], panel_files.read(files, words), files["scores"], strict=True
        )
    ]
    rows = list(dict.fromkeys(cell.row for cell in cells))
    methods = list(dict.fromkeys(cell.method for cell in cells))
    pictured = _pictured(cells)
    side = min((PAGE - LEFT - 0.06) / (1 + len(words["cases"])) - 0.06, WIDEST)
    points = HEAD + len(rows) * (HIGH + BETWEEN) + TICKS
    with styled():
        page = Page.new(words["title"], _footer(words, cells, scale), points + ABOVE + side + UNDER)
        _points(page, cells, rows, methods, words["cases"])
        _pictures(page, TITLE + points, side, pictured, words["cases"])
        missing.explain(page.figure)
    return page.figure


def _stand_in(panel: Panel) -> str:
    """What stands in for a panel's data set, in words."""
    return f"(here {panel.targets.source['dataset']})" if is_embedded(panel.targets) else ""


def _pictured(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of one network, data set and attack: most cases, most pictures, clearly the best."""
    places = list(dict.fromkeys((cell.row, cell.method) for cell in cells))
    found = [[c for c in cells if (c.row, c.method) == place] for place in places]

    def rank(each: Sequence[Cell]) -> tuple[int, int, float]:
        values = np.concatenate([cell.values for cell in each])
        middle = float(np.nanmedian(values)) if np.isfinite(values).any() else SPAN[0]
        return len(each), sum(not c.panel.reason(0) for c in each), round(middle, -1)

    return max(found, key=rank)


def _points(
    page: Page,
    cells: Sequence[Cell],
    rows: Sequence[tuple[str, str]],
    methods: Sequence[str],
    cases: Mapping[str, str],
) -> None:
    """A panel for each attack and each network and data set, a column in it for each case tried."""
    tried = {
        method: {
            case: said
            for case, said in cases.items()
            if any((cell.method, cell.case) == (method, case) for cell in cells)
        }
        for method in methods
    }
    columns = max(sum(map(len, tried.values())), len(cases))
    width = (PAGE - LEFT - 0.06 - GAP * len(methods)) / columns
    looks = dict(zip(cases, LOOKS, strict=False))
    for line, row in enumerate(rows):
        top = TITLE + HEAD + line * (HIGH + BETWEEN)
        own = [cell for cell in cells if cell.row == row]
        _label(page, top + HIGH / 2, *row)
        limits, left, last = _limits(own), LEFT, line == len(rows) - 1
        for place, (method, shown) in enumerate(tried.items()):
            axes = page.axes(left, top, width * len(shown), HIGH)
            left += width * len(shown) + GAP
            here = [cell for cell in own if cell.method == method]
            _panel(axes, here, list(shown), looks, limits)
            if not line:
                # Over a single case there is room for a word.
                title = method if len(shown) > 1 else "\n".join(method.split())
                axes.set_title(title, pad=3, weight="bold", linespacing=1.0)
            axes.tick_params(axis="y", labelleft=not place, length=2, pad=2)
            if not place:
                axes.set_ylabel("PSNR, dB", labelpad=2)
            axes.set_xticks(range(len(shown)), list(shown.values()) if last else [])
            axes.tick_params(axis="x", length=0, labelsize=SMALL, pad=2)


def _label(page: Page, middle: float, name: str, stand_in: str) -> None:
    """Name of a line, below it what stands in for its data set."""
    page.text(0.06, middle, name, va="bottom", weight="bold", fontsize=6.5)
    page.text(0.06, middle + 0.03, stand_in, va="top", fontsize=SMALL, color=GREY)


def _limits(cells: Sequence[Cell]) -> tuple[float, float]:
    """Range of the values of a line of panels, with room for medians and failed runs."""
    values = np.concatenate([cell.values.dropna() for cell in cells]).clip(*SPAN)
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    span = max(high - low, 1.0)
    return low - ROOM_BELOW * span, high + ROOM_ABOVE * span


def _panel(
    axes: Axes,
    here: Sequence[Cell],
    names: Sequence[str],
    looks: Mapping[str, tuple[str, str]],
    limits: tuple[float, float],
) -> None:
    """Points and medians of each case in `names`; failed runs as a cross with their number."""
    base = next(iter(looks))
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=limits)
    axes.grid(False, axis="x")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    for cell in here:
        x = names.index(cell.case)
        colour, marker = looks[cell.case]
        works = cell.values.dropna()
        spread = x + 0.22 * (np.linspace(-1, 1, len(works)) if len(works) > 1 else np.zeros(1))
        axes.plot(
            spread[: len(works)],
            works.clip(*SPAN),
            color=colour,
            marker=marker,
            linestyle="none",
            markersize=2.6,
            alpha=0.6,
            mew=0,
        )
        middle = median(cell.values, METRIC)
        if np.isfinite(middle):
            shown = float(np.clip(middle, *SPAN))
            axes.plot((x - 0.3, x + 0.3), (shown, shown), color="black", linewidth=1.2)
            if cell.case == base:
                axes.axhline(shown, color=colour, linewidth=0.6, linestyle=(0, (2, 2)), zorder=0)
        _counts(axes, x, cell, middle, colour)
    for x, case in enumerate(names):
        if case not in [cell.case for cell in here]:
            axes.text(x, 0.3, "\N{EN DASH}", **_inside(axes), color=GREY)


def _inside(axes: Axes) -> dict[str, Any]:
    """Where words of a column stand: x in cases, y in shares of the height."""
    return {"transform": axes.get_xaxis_transform(), "ha": "center"}


def _counts(axes: Axes, x: int, cell: Cell, middle: float, colour: str) -> None:
    """Median, number of runs, and how many of them failed."""
    said = f"{middle:.1f}".replace("-", MINUS) if np.isfinite(middle) else "failed"
    axes.text(x, 0.99, said, va="top", fontsize=SMALL, **_inside(axes))
    number = f"n {len(cell.values)}"
    axes.text(x, 0.89, number, va="top", fontsize=LEAST, color=GREY, **_inside(axes))
    failed = int(cell.values.isna().sum())
    if failed:
        cross = f"\N{MULTIPLICATION SIGN} {failed}"
        axes.text(x, 0.02, cross, va="bottom", fontsize=SMALL, color=colour, **_inside(axes))


def _pictures(
    page: Page, top: float, side: float, pictured: Sequence[Cell], cases: Mapping[str, str]
) -> None:
    """The first image, and what was made of it in each case."""
    first = pictured[0]
    name, stand_in = first.row
    _label(page, top + ABOVE + side / 2, f"Example:\n{first.method} on\n{name}", stand_in)
    step = side + 0.06
    headings = {"": "original", **cases}
    there = {cell.case: cell for cell in pictured}
    shown = [case for case in headings if case in there or not case]
    for place, case in enumerate(shown):
        left = LEFT + place * step
        heading = " ".join(headings[case].replace("-\n", "").split())
        page.text(
            left + side / 2, top + ABOVE - 0.04, heading, ha="center", va="bottom", fontsize=6.5
        )
        axes = page.picture(left, top + ABOVE, side)
        if case:
            fedkl_pictures.answer(axes, there[case].panel, 0)
        else:
            draw_pixels(axes, displayed(first.panel.targets.images[0, 0] / 255.0))


def _footer(words: Mapping[str, Any], cells: Sequence[Cell], scale: str) -> str:
    """How the figure is read, and which runs it shows."""
    sets = {cell.row: cell.panel.targets for cell in cells}
    images = "; ".join(
        dict.fromkeys(
            panel_files.describe_single(found, range(len(found.images))) for found in sets.values()
        )
    )
    origin = "embedded, in place of the paper's: " if any(map(is_embedded, sets.values())) else ""
    precision = " and ".join(sorted({cell.panel.precision for cell in cells}))
    failed = any(cell.values.isna().any() for cell in cells)
    beyond = any(((c.values < SPAN[0]) | (c.values > SPAN[1])).any() for c in cells)
    edge = f" Values beyond {SPAN[0]:g} and {SPAN[1]:g} dB are drawn there.".replace("-", MINUS)
    tried = {(cell.method, cell.case) for cell in cells}
    dash = " \N{EN DASH}: not among the experiments." * (len(cells) < len(tried) * len(sets))
    cross = (
        " \N{MULTIPLICATION SIGN}: failed runs with their number, as far as the attacker can tell; "
        "they count as worst."
    )
    return (
        f"{words.get('note', '')} Points: runs, one for each draw of the weights and image (n); "
        "bars and numbers above: medians; dashed: the median without lock."
        f"{cross * failed}{dash}{edge * beyond} PSNR with peak 1, of pixels in [0, 1]. Pictures: "
        "the first image, with PSNR and SSIM, clipped to that range. Images: "
        f"{origin}{images}. Scale {scale}; gradients in {precision}."
    )
