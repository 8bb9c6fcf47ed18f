"""Key-lock under attackers who know parts of it, or fit its effect."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gradleak.plotting import reader, wording
from gradleak.plotting.charts import strip
from gradleak.plotting.layout import EDGE, SMALL, Cell, Grid, Page, displayed, drawing
from gradleak.plotting.reader import Panel
from gradleak.plotting.style import BLUE, GREEN, GREY, LEAST, ORANGE, PAGE, PINK, RED, SKY, YELLOW
from gradleak.plotting.wording import MINUS, is_embedded
from papers.fedkl.figures.pictures import answer
from papers.fedkl.tables.adaptive import median

# Inches: margins, gaps, headings, heights of panels, ticks below, and the row of pictures.
LEFT, GAP, HEAD, HIGH, BETWEEN, TICKS = 1.1, 0.12, 0.28, 1.05, 0.1, 0.3
ABOVE, UNDER, WIDEST = 0.26, 0.26, 0.8
# Colour and marker of each case, in order.
COLOURS = (BLUE, GREY, RED, SKY, GREEN, PINK, ORANGE, YELLOW)
LOOKS = tuple(zip(COLOURS, "osDX^vP*", strict=True))
METRIC = "psnr"
SPAN = (-10.0, 80.0)  # dB; values outside are drawn at the edge
# Share of an axis' height reserved for medians above, and for failed runs below the points.
ROOM_ABOVE, ROOM_BELOW = 0.26, 0.16


@dataclass(frozen=True)
class Case:
    """Runs of one attack in one case."""

    row: tuple[str, str]  # network and data set, and what stands in for it
    method: str  # the attack
    name: str  # of what the attacker has
    panel: Panel

    @property
    def values(self) -> pd.Series:
        """PSNR of each run, NaN if it failed."""
        rows = self.panel.chosen
        return rows[METRIC].where(rows["status"] == "ok")


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Draw the figure from files of `gradleak.plotting.reader.read`.

    `words` has ``cases``, what the attacker has with axis labels, in order and starting with the
    case without lock; and ``panels`` with ``network``, ``dataset``, ``method`` and ``case``.
    """
    cases = []
    for entry, panel in zip(words["panels"], reader.read(files, words), strict=True):
        name = f"{entry['network']}, {entry['dataset']}".replace(", ", ",\n")
        dataset = panel.targets.source["dataset"]
        row = name, f"(here {dataset})" if is_embedded(panel.targets) else ""
        cases.append(Case(row, entry["method"], entry["case"], panel))
    names, rows = words["cases"], list(dict.fromkeys(case.row for case in cases))
    top, columns = HEAD + len(rows) * (HIGH + BETWEEN) + TICKS + ABOVE, [1 + len(names)]
    grid = Grid.fit(LEFT, top, PAGE - EDGE, columns, [UNDER], 0.06, widest=WIDEST)
    with drawing(words["title"], _footer(words, cases, scale), grid.bottom) as page:
        _charts(page, cases, rows, names)
        _pictures(page, grid, _pictured(cases), names)
    return page.figure


def _pictured(cases: Sequence[Case]) -> Sequence[Case]:
    """Select the network, data set and attack with most cases, most pictures, clearest best."""
    places = defaultdict[Any, list[Case]](list)
    for case in cases:
        places[case.row, case.method].append(case)

    def rank(each: Sequence[Case]) -> tuple[int, int, float]:
        values = pd.concat([case.values for case in each])
        middle = float(values.median()) if values.notna().any() else SPAN[0]
        return len(each), sum(not c.panel.reason(0) for c in each), round(middle, -1)

    return max(places.values(), key=rank)


def _charts(
    page: Page, cases: Sequence[Case], rows: Iterable[tuple[str, str]], names: Mapping[str, str]
) -> None:
    there = {(case.method, case.name) for case in cases}
    tried = {
        method: [name for name in names if (method, name) in there]
        for method in dict.fromkeys(case.method for case in cases)
    }
    columns = max(sum(map(len, tried.values())), len(names))
    width = (PAGE - LEFT - EDGE - GAP * len(tried)) / columns
    looks = dict(zip(names, LOOKS, strict=False))
    for line, row in enumerate(rows):
        top = HEAD + line * (HIGH + BETWEEN)
        own = [case for case in cases if case.row == row]
        _label(page, top + HIGH / 2, *row)
        limits, left, last = _limits(own), LEFT, row == cases[-1].row
        for place, (method, shown) in enumerate(tried.items()):
            axes = page.axes(left, top, width * len(shown), HIGH)
            left += width * len(shown) + GAP
            _chart(axes, [case for case in own if case.method == method], shown, looks, limits)
            if not line:
                # A single case leaves room for a word.
                title = method if len(shown) > 1 else "\n".join(method.split())
                axes.set_title(title, pad=3, weight="bold", linespacing=1.0)
            axes.tick_params(axis="y", labelleft=not place, length=2, pad=2)
            if not place:
                axes.set_ylabel("PSNR, dB", labelpad=2)
            axes.set_xticks(range(len(shown)), [names[name] for name in shown] if last else [])
            axes.tick_params(axis="x", length=0, labelsize=SMALL, pad=2)


def _label(page: Page, middle: float, name: str, stand_in: str) -> None:
    page.text(EDGE, middle, name, va="bottom", weight="bold", fontsize=6.5)
    page.text(EDGE, middle + 0.03, stand_in, va="top", fontsize=SMALL, color=GREY)


def _limits(cases: Sequence[Case]) -> tuple[float, float]:
    """Range of the values of a line of charts, with room for medians and failed runs."""
    values = pd.concat([case.values.dropna() for case in cases]).clip(*SPAN)
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    span = max(high - low, 1.0)
    return low - ROOM_BELOW * span, high + ROOM_ABOVE * span


def _chart(
    axes: Axes,
    here: Sequence[Case],
    names: Sequence[str],
    looks: Mapping[str, tuple[str, str]],
    limits: tuple[float, float],
) -> None:
    """Draw points and medians of the cases in `names`; failed runs as a cross with their number."""
    base = next(iter(looks))
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=limits)
    axes.grid(False, axis="x")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    # Labels of a column are placed by case and share of the height.
    inside: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center"}
    for x, name in enumerate(names):
        own = [case.values for case in here if case.name == name]
        if not own:
            axes.text(x, 0.3, "\N{EN DASH}", color=GREY, **inside)
            continue
        values, (colour, marker) = own[0], looks[name]
        strip(axes, x, values.clip(*SPAN), 0.22, alpha=0.6, color=colour, marker=marker, ms=2.6)
        middle, said = median(values, METRIC), "failed"
        if np.isfinite(middle):
            said, shown = wording.signed(middle, ".1f"), float(np.clip(middle, *SPAN))
            axes.plot((x - 0.3, x + 0.3), (shown, shown), color="black", linewidth=1.2)
            if name == base:
                axes.axhline(shown, color=colour, linewidth=0.6, linestyle=(0, (2, 2)), zorder=0)
        axes.text(x, 0.99, said, va="top", fontsize=SMALL, **inside)
        axes.text(x, 0.89, f"n {len(values)}", va="top", fontsize=LEAST, color=GREY, **inside)
        if failed := int(values.isna().sum()):
            cross = f"\N{MULTIPLICATION SIGN} {failed}"
            axes.text(x, 0.02, cross, va="bottom", fontsize=SMALL, color=colour, **inside)


def _pictures(page: Page, grid: Grid, cases: Sequence[Case], names: Mapping[str, str]) -> None:
    first, there = cases[0], {case.name: case.panel for case in cases}
    example = f"Example:\n{first.method} on\n{first.row[0]}"
    _label(page, grid.tops[0] + grid.side / 2, example, first.row[1])
    shown = [case for case in names if case in there]
    headings = (" ".join(names[case].replace("-\n", "").split()) for case in shown)
    grid.head(page, ["original", *headings], fontsize=6.5)
    original = Cell(displayed(first.panel.targets.images[0, 0] / 255.0))
    found = [original, *(answer(page, there[case], 0) for case in shown)]
    grid.draw(page, {(0, column): cell for column, cell in enumerate(found)})


def _footer(words: Mapping[str, Any], cases: Sequence[Case], scale: str) -> str:
    sets = {case.row: case.panel.targets for case in cases}
    values = pd.concat([case.values for case in cases])
    beyond = bool(((values < SPAN[0]) | (values > SPAN[1])).any())
    edge = f" Values beyond {SPAN[0]:g} and {SPAN[1]:g} dB are drawn there.".replace("-", MINUS)
    tried = {(case.method, case.name) for case in cases}
    absent = wording.ABSENT * (len(cases) < len(tried) * len(sets))
    cross = (
        " \N{MULTIPLICATION SIGN}: failed runs with their number, as far as the attacker can tell; "
        "they count as worst."
    )
    first = (
        f"{words.get('note', '')} Points: runs, one for each draw of the weights and image (n); "
        "bars and numbers above: medians; dashed: the median without lock."
        f"{cross * values.hasnans}{absent}{edge * beyond} PSNR with peak 1, of pixels in [0, 1]. "
        "Pictures: the first image, with PSNR and SSIM, clipped to that range."
    )
    images = wording.each(sets.values())
    return reader.footer({}, [case.panel for case in cases], images, scale, first)
