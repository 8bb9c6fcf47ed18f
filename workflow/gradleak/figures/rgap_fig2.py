"""R-GAP Figure 2: five networks, their rank analysis, and what attacks reconstruct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gradleak.figures import diagrams, missing
from gradleak.figures.answers import Content, caption
from gradleak.figures.pictures import SMALL, TITLE, Page, typical, under
from gradleak.figures.style import GREY, PAGE, styled
from gradleak.models.chain import Chain

# Inches: the column of labels, gaps, the words above a diagram, a picture, the words under it.
LABEL, GAP, HEAD, SIDE, UNDER = 0.82, 0.06, 0.42, 0.86, 0.29
SHOWN = 0  # batch whose image is shown


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        ``targets``, ``rank`` (rank analyses), ``reconstructions`` and ``scores`` of the same runs.
    words
        ``chains`` (descriptions of the networks, left to right), ``names`` of them, ``attacks``
        with their headings, top to bottom.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows.
    """
    content = Content.read(files, words)
    ranks = diagrams.read_ranks(files["rank"])
    tall = max(diagrams.depth(chain) for chain in content.chains)
    most = diagrams.widest(content.chains)
    rows = TITLE + HEAD + tall + 0.24
    width = (PAGE - LABEL - GAP) / len(content.chains)
    footer = (
        f"{diagrams.HEADED} Rank measured: that of the critical layer's own system [W; K], without "
        "|V|, for the image shown. Under each picture its MSE, and the median over all images. "
        + content.describe(scale)
    )
    with styled():
        page = Page.new(
            "Rank analysis of five networks and what attacks reconstruct (R-GAP Figure 2)",
            footer,
            rows - TITLE + len(content.attacks) * (SIDE + UNDER),
        )
        _labels(page, rows, content)
        for column, chain in enumerate(content.chains):
            left = LABEL + column * width
            middle = left + width / 2
            _head(page, middle, chain, content.name(chain))
            diagrams.draw(page, left + 0.02, TITLE + HEAD, width - 0.04, chain, most)
            style: dict[str, Any] = {"va": "top", "fontsize": SMALL, "color": GREY}
            page.text(middle, rows - 0.19, _rank(ranks, chain.name), ha="center", **style)
            for place, attack in enumerate(content.attacks):
                axes = page.picture(middle - SIDE / 2, rows + place * (SIDE + UNDER), SIDE)
                found = content.answers.find(chain.name, attack, SHOWN)
                content.show(axes, found)
                under(axes, caption(found), typical(content.answers.median(chain.name, attack)))
        missing.explain(page.figure)
    return page.figure


def _labels(page: Page, rows: float, content: Content) -> None:
    """Column of labels, with the original beside the diagrams."""
    content.draw_original(page.picture(0.06, TITLE + HEAD + 0.1, LABEL - 0.16), SHOWN)
    page.text(0.06, TITLE + HEAD + 0.06, "Original", va="bottom", fontsize=6)
    page.text(0.06, rows - 0.19, "Rank measured", va="top", fontsize=SMALL, color=GREY)
    for place, heading in enumerate(content.attacks.values()):
        middle = rows + place * (SIDE + UNDER) + SIDE / 2
        page.text(0.06, middle, heading, va="center", weight="bold")


def _head(page: Page, middle: float, chain: Chain, name: str) -> None:
    """Name, RA-i and size of a network."""
    weights = sum(band.weights for band in diagrams.bands(chain))
    style: dict[str, Any] = {"ha": "center", "va": "bottom"}
    page.text(middle, TITLE + 0.13, name, weight="bold", **style)
    colour = diagrams.index_colour(chain)
    page.text(middle, TITLE + 0.25, diagrams.index_words(chain), color=colour, **style)
    page.text(middle, TITLE + 0.36, f"|W| = {weights:,} in all", fontsize=SMALL, **style)


def _rank(ranks: pd.DataFrame, model: str) -> str:
    """Measured rank of a network's critical layer, in words; empty where there is none."""
    rows = ranks[(ranks["model"] == model) & ranks["critical"].astype(bool)]
    return diagrams.rank_words(rows.iloc[0]) if len(rows) else ""
