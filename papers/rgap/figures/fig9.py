"""R-GAP Figure 9: noise on the gradients and the width of the network."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gradleak.plotting.charts import LOOKS, log_limits, log_ticks, strip
from gradleak.plotting.content import Content
from gradleak.plotting.layout import EDGE, Grid, Page, drawing
from gradleak.plotting.reader import Panel, median
from gradleak.plotting.style import PAGE
from papers.rgap.figures import diagrams

# Inches: column of labels, gaps, text above a diagram, text under a picture, a panel.
LABEL, GAP, WIDE, HEAD, UNDER, PANEL = 0.82, 0.05, 0.16, 0.45, 0.29, 1.35
LEFT, BETWEEN = 0.55, 0.25  # inches, to the panels and between them
WIDEST = 1.0  # inches, side of a picture
SHOWN = 0


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Draw the figure; `words` has ``defences`` with labels for their noise, top to bottom."""
    content, levels = Content.read(files, words), words["defences"]
    chains, attacks = content.chains, content.attacks
    group = (PAGE - LABEL - WIDE * (len(chains) - 1) - GAP) / len(chains)
    top = HEAD + max(map(diagrams.depth, chains)) + 0.3
    under = [UNDER] * len(levels)
    # Pictures of a network are centred under its diagram.
    grid = Grid.fit(0.0, top, group + GAP, [len(attacks)], under, GAP, widest=WIDEST)
    title = "Noise on the gradients, and the width of the network (R-GAP Figure 9)"
    footer = (
        f"{diagrams.HEADED} Noise: Gaussian, on every gradient, as a share of its own standard "
        "deviation. Under each picture its MSE, and the median over all images; below, that "
        "median (lines) and the MSE of each image (dots), where x is a failed run. "
        f"{content.describe(scale)}"
    )
    most = diagrams.widest(chains)
    with drawing(title, footer, grid.bottom + 0.34 + PANEL + 0.28) as page:
        page.text(EDGE, HEAD - 0.03, "Original", va="bottom", fontsize=6)
        page.picture(EDGE, HEAD, LABEL - 0.16, content.original(SHOWN))
        grid.label(page, list(levels.values()))
        for column, chain in enumerate(chains):
            left = LABEL + column * (group + WIDE)
            middle = left + group / 2
            diagrams.head(page, middle, 0.16, content.name(chain), chain, ha="center")
            diagrams.draw(page, left, HEAD, group, chain, most)
            own = grid.moved(middle - grid.middle(0, len(attacks) - 1))
            own.head(page, list(attacks.values()))
            for place, attack in enumerate(attacks):
                panels = [content.panel(chain.name, attack, defence) for defence in levels]
                own.fill(page, place, [content.typical(panel, SHOWN) for panel in panels])
        _charts(page, grid.bottom + 0.34, content, levels)
    return page.figure


def _charts(page: Page, top: float, content: Content, levels: Mapping[str, str]) -> None:
    attacks, count = content.attacks, len(content.chains)
    width = (PAGE - LEFT - 0.1 - BETWEEN * (len(attacks) - 1)) / len(attacks)
    limits = log_limits(content.table()["mse"], 5, 5)
    lines: dict[str, Line2D] = {}
    for place, (attack, heading) in enumerate(attacks.items()):
        axes = page.axes(LEFT + place * (width + BETWEEN), top, width, PANEL)
        for number, chain in enumerate(content.chains):
            panels = [content.panel(chain.name, attack, defence) for defence in levels]
            where = np.arange(len(levels)) + 0.13 * (number - (count - 1) / 2)
            look = LOOKS[number % len(LOOKS)]
            lines[content.name(chain)] = _line(axes, where, panels, *look)
        axes.set(yscale="log", ylim=limits, xlim=(-0.4, len(levels) - 0.6))
        axes.set_xticks(range(len(levels)), levels.values())
        log_ticks(axes.yaxis, 6)
        axes.set_title(heading, loc="left", weight="bold", pad=3)
        axes.tick_params(axis="y", labelleft=not place)
        axes.set_ylabel("" if place else "MSE")
    style: dict[str, Any] = {"bbox_to_anchor": (0.5, top - 0.14), "bbox_transform": page.inches}
    style |= {"loc": "lower left", "ncols": len(lines), "borderaxespad": 0}
    page.figure.legend(lines.values(), lines.keys(), **style)


def _line(
    axes: Axes, where: np.ndarray, panels: Sequence[Panel], colour: str, marker: str
) -> Line2D:
    medians = []
    for x, panel in zip(where, panels, strict=True):
        rows = panel.chosen
        works = rows["mse"].where(rows["status"] == "ok").dropna()
        strip(axes, x, works, 0.0, color=colour, marker=marker, ms=2.5, alpha=0.5)
        failed = len(rows) - len(works)
        style: dict[str, Any] = {"color": colour, "ms": 3, "transform": axes.get_xaxis_transform()}
        axes.plot(np.full(failed, x), np.full(failed, 0.97), "x", **style)
        middle = median(rows)
        medians.append(middle if np.isfinite(middle) else np.nan)
    return axes.plot(where, medians, color=colour, marker=marker, markersize=4.5)[0]
