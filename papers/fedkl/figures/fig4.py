"""FedKL Figure 4: output of the first norm with and without key-lock, and accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gradleak.errors import ArtifactError
from gradleak.plotting import curves
from gradleak.plotting.curves import LOOKS, NAMES, Curve
from gradleak.plotting.layout import SMALL, Page, drawing
from gradleak.plotting.style import BLUE, GREEN, GREY, ORANGE, PAGE
from gradleak.plotting.wording import signed
from gradleak.runtime.artifacts import read_csv

# Inches: margins for both axes' ticks, headings, heights of panels, and space below them.
LEFT, RIGHT, GAP, LEGEND, HEAD, HIGH, TICKS = 0.42, 0.42, 0.24, 0.28, 0.42, 1.5, 0.9
LINE = 0.1  # line height of the numbers below a panel
ACROSS = 2
# Column of the table: its colour, opacity and name.
SHOWN = {
    "reference": (BLUE, 0.3, "reference: normalised, before scale and shift"),
    "w/o KL": (ORANGE, 0.0, "scaled and shifted, w/o KL"),
    "w/ KL": (GREEN, 0.3, "scaled and shifted, w/ KL"),
}
# Share of values that may lie outside the axis on either side, per distribution.
TAIL = 0.002
# Peaks above this multiple of the reference's are cut.
TALLEST = 2.2
# Metric of the table: its heading and format.
FACTS = {
    "mean": ("mean", ".2f"),
    "sd": ("sd", ".2f"),
    "skewness": ("skew", ".2f"),
    "wasserstein": ("W₁", ".2f"),
    "highest": ("highest", ".2f"),
    "zero_scale": ("γ = 0", ".0%"),
}


@dataclass(frozen=True)
class Distribution:
    """Density of one distribution in bins, and its summary numbers."""

    edges: np.ndarray
    density: np.ndarray
    facts: Mapping[str, float]  # by metric of the table, and the ``highest`` density

    @property
    def range(self) -> tuple[float, float]:
        """Interval that contains all but `TAIL` on either side."""
        share = np.cumsum(self.density * np.diff(self.edges))
        low = int(np.searchsorted(share, TAIL))
        high = int(np.searchsorted(share, share[-1] - TAIL))
        return float(self.edges[low]), float(self.edges[min(high + 1, len(share))])


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Draw a chart for each of ``panels``, with its ``row`` of the ``table`` and its ``images``.

    Other files are those of `curves.read`; a curve has the index of its ``panel``.
    """
    found = curves.read(files, words["curves"])
    table, panels = read_csv(files["table"]), words["panels"]
    across, step = min(ACROSS, len(panels)), HEAD + HIGH + TICKS
    width = (PAGE - ACROSS * (LEFT + RIGHT) - (ACROSS - 1) * GAP) / ACROSS
    depth = LEGEND + step * -(-len(panels) // across)
    with drawing(words["title"], _footer(words, table, found, scale), depth) as page:
        _legend(page)
        for place, panel in enumerate(panels):
            row, column = divmod(place, across)
            left = LEFT + column * (width + LEFT + RIGHT + GAP)
            top = LEGEND + row * step + HEAD
            page.text(left, top + 0.1 - HEAD, panel["row"], weight="bold", fontsize=7)
            spreads = {column: _read(table, panel["row"], column) for column in SHOWN}
            below, above = (page.axes(left, top, width, HIGH) for _ in range(2))
            _densities(below, spreads)
            each = zip(words["curves"], found, strict=True)
            _accuracies(below, above, [curve for e, curve in each if e["panel"] == place])
            _numbers(page, left, top + HIGH + 0.42, spreads)
    return page.figure


def _read(table: pd.DataFrame, row: str, column: str) -> Distribution:
    own = table[(table["row"] == row) & (table["column"] == column)]
    bins = own[own["metric"] == "density"].sort_values("left")
    rest = own[own["metric"] != "density"]
    facts = dict(zip(rest["metric"], rest["ours"].to_numpy(float).tolist(), strict=True))
    if bins.empty or not facts:
        raise ArtifactError(
            f"The table holds no '{column}' of {row}; delete it and ask Snakemake for it again."
        )
    density, edges = bins["ours"].to_numpy(float), np.append(bins["left"], bins["right"].iloc[-1])
    return Distribution(edges, density, facts | {"highest": float(density.max())})


def _legend(page: Page) -> None:
    for left, (colour, fill, name) in zip((0.06, 2.37, 3.87), SHOWN.values(), strict=True):
        axes = page.swatch(left, 0.09, name)
        axes.fill_between((0, 1), 0, 1, color=colour, alpha=fill, linewidth=0)
        axes.plot((0, 1), (0.96, 0.96), color=colour)
    for lock, left in ((False, 5.26), (True, 6.12)):
        axes = page.swatch(left, 0.09, f"accuracy {NAMES[lock]}")
        axes.plot((0, 1), (0.5, 0.5), **LOOKS[lock])


def _densities(axes: Axes, spreads: Mapping[str, Distribution]) -> None:
    low, high = np.array([spread.range for spread in spreads.values()]).T
    for column, spread in spreads.items():
        colour, fill, _ = SHOWN[column]
        if fill:
            axes.stairs(spread.density, spread.edges, fill=True, color=colour, alpha=fill)
        axes.stairs(spread.density, spread.edges, color=colour, linewidth=0.8)
    # Higher peaks are cut.
    highest = {column: spread.facts["highest"] for column, spread in spreads.items()}
    top = min(TALLEST * highest["reference"], 1.08 * max(highest.values()))
    axes.set(xlim=(low.min(), high.max()), ylim=(0, top))
    axes.set_xlabel("value", labelpad=1)
    axes.set_ylabel("density", labelpad=2)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(length=2, pad=2)
    axes.grid(False)


def _numbers(page: Page, left: float, top: float, spreads: Mapping[str, Distribution]) -> None:
    lefts = [left + 0.78 + 0.42 * place for place in range(len(FACTS))]
    for x, (heading, _) in zip(lefts, FACTS.values(), strict=True):
        page.text(x, top, heading, ha="right", fontsize=SMALL, color=GREY)
    for line, (column, spread) in enumerate(spreads.items(), start=1):
        y = top + LINE * line
        page.text(left - 0.1, y, "\N{BLACK SQUARE}", fontsize=SMALL, color=SHOWN[column][0])
        page.text(left + 0.02, y, column, fontsize=SMALL)
        for x, (fact, (_, form)) in zip(lefts, FACTS.items(), strict=True):
            if fact in spread.facts:
                # Values that round to zero have no sign.
                said = signed(round(spread.facts[fact], 2) + 0.0, form)
                page.text(x, y, said, ha="right", fontsize=SMALL)


def _accuracies(below: Axes, axes: Axes, own: Sequence[Curve]) -> None:
    """Draw accuracy over epochs above the distributions, on top and right axes."""
    axes.patch.set_alpha(0.0)
    axes.set_zorder(below.get_zorder() + 1)
    axes.grid(False)
    axes.xaxis.tick_top()
    axes.yaxis.tick_right()
    axes.xaxis.set_label_position("top")
    axes.yaxis.set_label_position("right")
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("top", "right"))
    for curve in own:
        curve.draw(axes, "validation_accuracy", 100.0)
    axes.set(ylim=(0, 100))
    axes.margins(x=0.03)
    axes.set_xlabel("epoch", labelpad=1, color=GREY)
    axes.set_ylabel("accuracy, %", labelpad=2, color=GREY)
    axes.tick_params(length=2, pad=2, colors=GREY)
    curves.whole_epochs(axes, 6)


def _footer(
    words: Mapping[str, Any], table: pd.DataFrame, found: Sequence[Curve], scale: str
) -> str:
    counts = sorted({int(n) for n in table["n"]})
    bins = table[table["metric"] == "density"]
    outside = table[(table["metric"] == "outside") & table["column"].isin(SHOWN)]
    most = float(outside["ours"].max()) if len(outside) else 0.0
    beyond = f" Up to {most:.1%} of the values lie beyond ±{bins['right'].max():g}."
    images = "; ".join(dict.fromkeys(panel["images"] for panel in words["panels"]))
    width = bins["right"].iloc[0] - bins["left"].iloc[0]
    return (
        "Caption and text of the paper differ on the reference. Here: u = (z − mean) / sqrt("
        "variance + ε) behind the first convolution of the network without key-lock, with its "
        "running statistics. Scaled and shifted: γ·u + β of that network; with key-lock, u of the "
        "locked network with γ and β that its client's key and lock give. All validation images "
        f"({' or '.join(f'{n:,}' for n in counts)}), channels and positions, in bins of "
        f"{width:g}; sd: standard deviation; W₁: 1-Wasserstein distance "
        "to the reference; highest: density in the highest bin, which the axis may cut; γ = 0: "
        f"share of channels that this scale turns off.{beyond * (most > TAIL)} "
        f"{words.get('note', '')} Accuracy: on the images that choose the epoch. Images: {images}; "
        f"{curves.describe(found)}. Scale {scale}."
    )
