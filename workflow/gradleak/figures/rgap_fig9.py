"""R-GAP Figure 9: noise on the gradients and the width of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from gradleak.figures import diagrams, missing
from gradleak.figures.answers import Answers, Content, caption
from gradleak.figures.pictures import TITLE, Page, typical, under
from gradleak.figures.style import BLUE, GREEN, ORANGE, PAGE, styled
from gradleak.models.chain import Chain

# Inches: the column of labels, gaps, the words above a diagram, words under a picture, a panel.
LABEL, GAP, WIDE, HEAD, UNDER, PANEL = 0.82, 0.05, 0.16, 0.45, 0.29, 1.35
WIDEST = 1.0  # inches of a picture's side
SHOWN = 0
LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"))


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        ``targets``, and ``reconstructions`` and ``scores`` of the same runs.
    words
        ``chains`` (descriptions of the networks, left to right), ``names`` of them, ``defences``
        with the words for their noise, top to bottom, ``attacks`` with their headings.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows.
    """
    content, levels = Content.read(files, words), words["defences"]
    chains, attacks = content.chains, content.attacks
    group = (PAGE - LABEL - WIDE * (len(chains) - 1) - GAP) / len(chains)
    side = min((group + GAP) / len(attacks) - GAP, WIDEST)
    rows = TITLE + HEAD + max(diagrams.depth(chain) for chain in chains) + 0.3
    panels = rows + len(levels) * (side + UNDER) + 0.34
    with styled():
        page = Page.new(
            "Noise on the gradients, and the width of the network (R-GAP Figure 9)",
            f"{diagrams.HEADED} Noise: Gaussian, on every gradient, as a share of its own standard "
            "deviation. Under each picture its MSE, and the median over all images; below, that "
            "median (lines) and the MSE of each image (dots), where x is a failed run. "
            f"{content.describe(scale)}",
            panels - TITLE + PANEL + 0.28,
        )
        page.text(0.06, TITLE + HEAD - 0.03, "Original", va="bottom", fontsize=6)
        content.draw_original(page.picture(0.06, TITLE + HEAD, LABEL - 0.16), SHOWN)
        for place, noise in enumerate(levels.values()):
            y = rows + place * (side + UNDER) + side / 2
            page.text(0.06, y, noise, va="center", weight="bold")
        most = diagrams.widest(chains)
        for column, chain in enumerate(chains):
            left = LABEL + column * (group + WIDE)
            _head(page, left + group / 2, chain, content.name(chain))
            diagrams.draw(page, left, TITLE + HEAD, group, chain, most)
            middle = left + group / 2
            _pictures(page, middle, rows, side, content, chain.name, list(levels))
        _panels(page, panels, content, levels)
        missing.explain(page.figure)
    return page.figure


def _head(page: Page, middle: float, chain: Chain, name: str) -> None:
    """Name and RA-i of a network."""
    page.text(middle, TITLE + 0.16, name, ha="center", weight="bold")
    colour = diagrams.index_colour(chain)
    page.text(middle, TITLE + 0.3, diagrams.index_words(chain), ha="center", color=colour)


def _pictures(
    page: Page,
    middle: float,
    top: float,
    side: float,
    content: Content,
    model: str,
    defences: list[str],
) -> None:
    """Reconstructions of one network: a row for each level of noise, a column for each attack."""
    count = len(content.attacks)
    left = middle - (count * side + (count - 1) * GAP) / 2
    for column, (attack, heading) in enumerate(content.attacks.items()):
        x = left + column * (side + GAP)
        page.text(x + side / 2, top - 0.04, heading, ha="center", va="bottom", fontsize=6)
        for row, defence in enumerate(defences):
            axes = page.picture(x, top + row * (side + UNDER), side)
            found = content.answers.find(model, attack, SHOWN, defence=defence)
            content.show(axes, found)
            median = content.answers.median(model, attack, defence)
            under(axes, caption(found), typical(median))


def _panels(page: Page, top: float, content: Content, levels: Mapping[str, str]) -> None:
    """MSE against noise, a panel for each attack on one scale, a line for each network."""
    attacks, count = content.attacks, len(content.chains)
    width = (PAGE - 0.55 - 0.1 - 0.25 * (len(attacks) - 1)) / len(attacks)
    values = content.answers.table["mse"].dropna()
    values = values[values > 0]
    lines: dict[str, Line2D] = {}
    limits = (values.min() / 5, values.max() * 5) if len(values) else (1e-6, 1.0)
    for place, (attack, heading) in enumerate(attacks.items()):
        axes = page.axes(0.55 + place * (width + 0.25), top, width, PANEL)
        for number, chain in enumerate(content.chains):
            shift = 0.13 * (number - (count - 1) / 2)
            line = _line(axes, content.answers, chain.name, attack, list(levels), shift, number)
            lines[content.name(chain)] = line
        axes.set(yscale="log", ylim=limits, xlim=(-0.4, len(levels) - 0.6))
        axes.set_xticks(range(len(levels)), levels.values())
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_title(heading, loc="left", weight="bold", pad=3)
        if place == 0:
            axes.set_ylabel("MSE")
        else:
            axes.set_yticklabels([])
    page.figure.legend(
        lines.values(),
        lines.keys(),
        loc="lower left",
        bbox_to_anchor=(0.5 / PAGE, 1 - (top - 0.14) / page.height),
        ncols=len(lines),
        borderaxespad=0,
    )


def _line(
    axes: Axes,
    answers: Answers,
    model: str,
    attack: str,
    defences: list[str],
    shift: float,
    number: int,
) -> Line2D:
    """Dots of all images and the line of medians of one network."""
    colour, marker = LOOKS[number % len(LOOKS)]
    medians = []
    for place, defence in enumerate(defences):
        rows = answers.rows(model, attack, defence)
        works = rows[rows["status"] == "ok"]["mse"]
        style: dict[str, Any] = {"color": colour, "linestyle": "none"}
        axes.plot(
            np.full(len(works), place + shift),
            works,
            marker=marker,
            ms=2.5,
            mew=0,
            alpha=0.5,
            **style,
        )
        axes.plot(
            np.full(len(rows) - len(works), place + shift),
            np.full(len(rows) - len(works), 0.97),
            marker="x",
            ms=3,
            transform=axes.get_xaxis_transform(),
            **style,
        )
        median = answers.median(model, attack, defence)
        medians.append(median if np.isfinite(median) else np.nan)
    where = np.arange(len(defences)) + shift
    return axes.plot(where, medians, color=colour, marker=marker, markersize=4.5)[0]
