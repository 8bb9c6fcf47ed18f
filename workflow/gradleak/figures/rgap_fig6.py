"""R-GAP Figure 6: networks without and with a skip connection under DLG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from gradleak.errors import ArtifactError
from gradleak.figures import diagrams, missing
from gradleak.figures.answers import Answers, Content, caption
from gradleak.figures.pictures import SMALL, TITLE, Page, median_of, under
from gradleak.figures.style import BLUE, GREY, PAGE, number, styled
from gradleak.models.chain import Chain

# Inches: a diagram, gaps, a picture, the words under it, the heading of a pair.
DIAGRAM, GAP, SIDE, UNDER, HEAD = 1.48, 0.06, 0.76, 0.18, 0.36
NETWORK = DIAGRAM + SIDE + 2 * GAP
SHOWN = 0
WITH = "_skip"  # a model of this ending is its namesake with a skip


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        ``targets``, and ``reconstructions`` and ``scores`` of the same runs.
    words
        ``chains`` (descriptions of the networks; pairs are told by the ending ``_skip``),
        ``names`` of the pairs by the model without the skip, ``attacks``: one and its heading.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows, or there is no pair.
    """
    content = Content.read(files, words)
    pairs = _pairs(content.chains)
    attack, heading = next(iter(content.attacks.items()))
    tall = max(diagrams.depth(chain) for pair in pairs for chain in pair)
    block = HEAD + max(tall, 2 * (SIDE + UNDER)) + 0.06
    limits = _limits(content.answers, attack)
    with styled():
        page = Page.new(
            f"{heading} on networks without and with a skip connection (R-GAP Figure 6)",
            f"{diagrams.HEADED} Arrows: skips, whose input the layers on the way carry along in "
            "their unknowns. Right: the MSE of every start for every image, the bar their median; "
            f"x: starts that failed. {content.describe(scale)}",
            len(pairs) * block,
        )
        most = diagrams.widest([chain for pair in pairs for chain in pair])
        for row, pair in enumerate(pairs):
            top = TITLE + row * block
            for column, chain in enumerate(pair):
                left = column * NETWORK
                title = f"{content.name(pair[0])}, {'with' if column else 'without'} skip"
                _network(page, left, top, chain, title, most)
                _pictures(page, left + DIAGRAM, top, content, chain.name)
            left = 2 * NETWORK + 0.46
            axes = page.axes(left, top + HEAD, PAGE - left - 0.1, block - HEAD - 0.52)
            rows = [content.answers.rows(chain.name, attack, chosen=False) for chain in pair]
            _points(axes, rows, limits)
            axes.set_xlabel(f"MSE of all starts of {heading}")
        missing.explain(page.figure)
    return page.figure


def _pairs(chains: list[Chain]) -> list[tuple[Chain, Chain]]:
    """Networks without a skip, each with its namesake that has one."""
    named = {chain.name: chain for chain in chains}
    pairs = [(c, named[c.name + WITH]) for c in chains if c.name + WITH in named]
    if not pairs:
        raise ArtifactError(
            f"No pair of networks to draw; give models NAME and NAME{WITH} in config.yaml."
        )
    return pairs


def _network(page: Page, left: float, top: float, chain: Chain, title: str, most: int) -> None:
    """Diagram of a network under its title."""
    page.text(left + 0.06, top + 0.13, title, weight="bold", fontsize=6.5)
    colour = diagrams.index_colour(chain)
    page.text(left + 0.06, top + 0.25, diagrams.index_words(chain), color=colour, fontsize=6.5)
    diagrams.draw(page, left, top + HEAD, DIAGRAM, chain, most)


def _pictures(page: Page, left: float, top: float, content: Content, model: str) -> None:
    """Original above, reconstruction below."""
    attack, heading = next(iter(content.attacks.items()))
    axes = page.picture(left, top + HEAD, SIDE)
    content.draw_original(axes, SHOWN)
    under(axes, "original")
    axes = page.picture(left, top + HEAD + SIDE + UNDER, SIDE)
    found = content.answers.find(model, attack, SHOWN)
    content.show(axes, found)
    under(axes, f"{heading} {caption(found)}")


def _limits(answers: Answers, attack: str) -> tuple[float, float]:
    """One range of MSE for all panels."""
    values = answers.table.loc[answers.table["attack"] == attack, "mse"].dropna()
    values = values[values > 0]
    if values.empty:
        return 1e-6, 1.0
    return float(values.min()) / 3, max(float(values.max()) * 6, 0.3)


def _points(axes: Axes, pair: list[pd.DataFrame], limits: tuple[float, float]) -> None:
    """MSE of every start, a line for each network; failed starts are crosses at the right edge."""
    for height, (rows, colour) in enumerate(zip(pair, (GREY, BLUE), strict=True)):
        works = rows[rows["status"] == "ok"]["mse"].clip(lower=limits[0])
        spread = height + 0.24 * np.linspace(-1, 1, max(len(rows), 2))[: len(rows)]
        axes.plot(works, spread[: len(works)], "o", color=colour, alpha=0.6, markersize=3, mew=0)
        failed = len(rows) - len(works)
        axes.plot(
            np.full(failed, 0.97),
            spread[len(works) :],
            "x",
            color=colour,
            markersize=3,
            transform=axes.get_yaxis_transform(),
        )
        median = median_of(rows)
        words = "median failed"
        if np.isfinite(median):
            axes.plot((median, median), (height - 0.32, height + 0.32), color="black")
            words = f"median {number(median)}"
        if failed:
            words += f", {failed} of {len(rows)} failed"
        axes.text(
            0.02,
            height - 0.36,
            words,
            transform=axes.get_yaxis_transform(),
            fontsize=SMALL,
            va="bottom",
        )
    axes.set(xscale="log", xlim=limits, ylim=(1.5, -0.55), yticks=(0, 1))
    axes.set_yticklabels(("without", "with"))
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    axes.xaxis.set_minor_locator(NullLocator())
