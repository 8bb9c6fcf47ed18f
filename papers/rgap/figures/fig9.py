"""R-GAP Figure 9: noise on the gradients and the width of the network."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gradleak.plotting.charts import LOOKS, log_limits, log_ticks, strip
from gradleak.plotting.layout import EDGE, Grid, Page, drawing
from gradleak.plotting.reader import Content, Panel, median
from gradleak.plotting.style import PAGE
from gradleak.runtime.tidy import Given
from papers.rgap.figures import diagrams

# Inches: column of labels, gaps, text above a diagram, text under a picture, a panel.
LABEL, GAP, WIDE, HEAD, UNDER, PANEL = 0.82, 0.05, 0.16, 0.45, 0.29, 1.35
LEFT, BETWEEN = 0.55, 0.25  # inches, to the panels and between them
WIDEST = 1.0  # inches, side of a picture
SHOWN = 0


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the figure; `words` has ``defences`` with labels for their noise, top to bottom."""
    content, levels = Content.read(files, words), words["defences"]
    chains, attacks = content.chains, content.attacks
    group = (PAGE - LABEL - WIDE * (len(chains) - 1) - GAP) / len(chains)
    top = HEAD + max(map(diagrams.depth, chains)) + 0.3
    under = [UNDER] * len(levels)
    # Pictures of a network are centred under its diagram.
    grid = Grid.fit(0.0, top, group + GAP, [len(attacks)], under, GAP, widest=WIDEST)
    most, high = diagrams.widest(chains), grid.bottom + 0.34 + PANEL + 0.28
    with drawing(words["title"], content.describe(scale), high) as page:
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
    limits, lines = log_limits(content.table()["mse"], 5, 5), {}
    for place, (attack, heading) in enumerate(attacks.items()):
        axes = page.axes(LEFT + place * (width + BETWEEN), top, width, PANEL)
        for number, chain in enumerate(content.chains):
            panels = [content.panel(chain.name, attack, defence) for defence in levels]
            where = np.arange(len(levels)) + 0.13 * (number - (count - 1) / 2)
            lines[content.name(chain)] = _line(axes, where, panels, *LOOKS[number % len(LOOKS)])
        axes.set(yscale="log", ylim=limits, xlim=(-0.4, len(levels) - 0.6))
        axes.set_xticks(range(len(levels)), levels.values())
        log_ticks(axes.yaxis, 6)
        axes.set_title(heading, loc="left", weight="bold", pad=3)
        axes.tick_params(axis="y", labelleft=not place)
        axes.set_ylabel("" if place else "MSE")
    page.legend(lines, 0.5, top - 0.14, loc="lower left", ncols=len(lines))


def _line(
    axes: Axes, where: np.ndarray, panels: Sequence[Panel], colour: str, marker: str
) -> Line2D:
    inside, middle = axes.get_xaxis_transform(), [median(panel.chosen) for panel in panels]
    for x, panel in zip(where, panels, strict=True):
        works = panel.works("mse")
        strip(axes, x, works, 0.0, color=colour, marker=marker, ms=2.5, alpha=0.5)
        failed = int(works.isna().sum())
        axes.plot([x] * failed, [0.97] * failed, "x", color=colour, ms=3, transform=inside)
    shown = np.where(np.isfinite(middle), middle, np.nan)
    return axes.plot(where, shown, color=colour, marker=marker, markersize=4.5)[0]
