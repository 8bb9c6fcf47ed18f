"""R-GAP Figure 2: five networks, their rank analysis, and reconstructions."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gradleak.plotting.content import Content
from gradleak.plotting.layout import EDGE, SMALL, Grid, drawing
from gradleak.plotting.style import GREY, PAGE
from papers.rgap.figures import diagrams

# Inches: column of labels, gaps, text above a diagram, a picture, text under it.
LABEL, GAP, HEAD, SIDE, UNDER = 0.82, 0.06, 0.42, 0.86, 0.29
SHOWN = 0  # batch of the image
HEADING: dict[str, Any] = {"ha": "center", "va": "bottom"}
RANK: dict[str, Any] = {"va": "top", "fontsize": SMALL, "color": GREY}


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Draw the figure; `files` has ``rank`` (rank analyses) beside those of `Content.read`."""
    content = Content.read(files, words)
    chains, attacks = content.chains, content.attacks
    ranks = diagrams.read_ranks(files["rank"])
    most = diagrams.widest(chains)
    top = HEAD + max(map(diagrams.depth, chains)) + 0.24
    width = (PAGE - LABEL - GAP) / len(chains)
    lefts = [LABEL + column * width for column in range(len(chains))]
    tops = [top + row * (SIDE + UNDER) for row in range(len(attacks) + 1)]
    grid = Grid([left + (width - SIDE) / 2 for left in lefts], tops[:-1], SIDE, tops[-1])
    title = "Rank analysis of five networks and what attacks reconstruct (R-GAP Figure 2)"
    footer = (
        f"{diagrams.HEADED} Rank measured: that of the critical layer's own system [W; K], without "
        "|V|, for the image shown. Under each picture its MSE, and the median over all images. "
        + content.describe(scale)
    )
    with drawing(title, footer, grid.bottom) as page:
        page.picture(EDGE, HEAD + 0.1, LABEL - 0.16, content.original(SHOWN))
        page.text(EDGE, HEAD + 0.06, "Original", va="bottom", fontsize=6)
        page.text(EDGE, top - 0.19, "Rank measured", **RANK)
        grid.label(page, list(attacks.values()))
        for column, (chain, left) in enumerate(zip(chains, lefts, strict=True)):
            middle, weights = grid.middle(column), sum(b.weights for b in diagrams.bands(chain))
            diagrams.head(page, middle, 0.13, content.name(chain), chain, **HEADING)
            page.text(middle, 0.36, f"|W| = {weights:,} in all", fontsize=SMALL, **HEADING)
            diagrams.draw(page, left + 0.02, HEAD, width - 0.04, chain, most)
            page.text(middle, top - 0.19, _rank(ranks, chain.name), ha="center", **RANK)
            panels = [content.panel(chain.name, attack) for attack in attacks]
            grid.fill(page, column, [content.typical(panel, SHOWN) for panel in panels])
    return page.figure


def _rank(ranks: pd.DataFrame, model: str) -> str:
    """Measured rank of a network's critical layer, in words; empty if there is none."""
    rows = ranks[(ranks["model"] == model) & ranks["critical"].astype(bool)]
    return diagrams.rank_words(rows.iloc[0]) if len(rows) else ""
