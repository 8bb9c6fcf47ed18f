"""R-GAP Figure 3: CNN6 and CNN6-d, and what each attack reconstructs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gradleak.figures import diagrams, missing
from gradleak.figures.answers import Content, caption
from gradleak.figures.pictures import SMALL, TITLE, Page, under
from gradleak.figures.style import GREY, PAGE, number, styled

# Inches: the diagram's column, gaps, the headings of a block, the words under a picture.
DIAGRAM, GAP, HEAD, UNDER, FOOT = 1.62, 0.05, 0.34, 0.17, 0.2
MOST = 3  # images of each network
WORST = 2  # layers that lack rank, listed under the diagram


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        ``targets``, ``rank`` (rank analyses), ``reconstructions`` and ``scores`` of the same runs.
    words
        ``chains`` (descriptions of the networks, a block each), ``names`` of them, ``attacks``
        with their headings, left to right.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows.
    """
    content = Content.read(files, words)
    columns = 1 + len(content.attacks)
    side = (PAGE - DIAGRAM - columns * GAP) / columns
    rows = min(MOST, content.answers.shared(content.attacks))
    tall = max(diagrams.depth(chain) for chain in content.chains)
    block = HEAD + max(rows * (side + UNDER) + FOOT, tall + 0.54)
    ranks = diagrams.read_ranks(files["rank"])
    footer = (
        f"{diagrams.KEY} Rank measured: that of a layer's own system [W; K], without |V|. Under "
        f"each picture its MSE; below each column the median over all images. "
        f"{content.describe(scale)}"
    )
    with styled():
        title = "Reconstructions from one gradient of CNN6 and CNN6-d (R-GAP Figure 3)"
        page = Page.new(title, footer, len(content.chains) * block)
        most = diagrams.widest(content.chains)
        for place, chain in enumerate(content.chains):
            top = TITLE + place * block
            page.text(0.06, top + 0.14, content.name(chain), weight="bold")
            diagrams.draw(page, 0.0, top + HEAD, DIAGRAM - 0.04, chain, most)
            page.text(
                DIAGRAM / 2,
                top + HEAD + diagrams.depth(chain) + 0.06,
                _rank_words(ranks[ranks["model"] == chain.name]),
                ha="center",
                va="top",
                fontsize=SMALL,
            )
            _block(page, top, side, rows, content, chain.name)
        missing.explain(page.figure)
    return page.figure


def _block(page: Page, top: float, side: float, rows: int, content: Content, model: str) -> None:
    """Pictures of one network: a row for each image, a column for each attack."""
    foot = top + HEAD + rows * (side + UNDER) + 0.09
    words: dict[str, Any] = {"va": "center", "fontsize": SMALL, "color": GREY}
    page.text(DIAGRAM + side, foot, "median of all:", ha="right", **words)
    for column, heading in enumerate(["Original", *content.attacks.values()]):
        middle = DIAGRAM + column * (side + GAP) + side / 2
        page.text(middle, top + HEAD - 0.04, heading, ha="center", va="bottom", fontsize=6)
    for row in range(rows):
        y = top + HEAD + row * (side + UNDER)
        content.draw_original(page.picture(DIAGRAM, y, side), row)
        for column, attack in enumerate(content.attacks, start=1):
            axes = page.picture(DIAGRAM + column * (side + GAP), y, side)
            found = content.answers.find(model, attack, row)
            content.show(axes, found)
            under(axes, caption(found))
    for column, attack in enumerate(content.attacks, start=1):
        median = content.answers.median(model, attack)
        value = number(median) if np.isfinite(median) else "failed"
        middle = DIAGRAM + column * (side + GAP) + side / 2
        page.text(middle, foot, value, ha="center", va="center", fontsize=6, weight="bold")


def _rank_words(ranks: pd.DataFrame) -> str:
    """Which layers lack rank by measurement."""
    if ranks.empty:
        return ""
    missing = ranks.assign(missing=ranks["inputs"] - ranks["rank"]).query("missing > 0")
    if missing.empty:
        return "Rank measured: full\nin every convolution"
    worst = missing.sort_values("missing", ascending=False, kind="stable").head(WORST)
    listed = [diagrams.rank_words(row) for _, row in worst.iterrows()]
    words = ["Rank measured, less than full:", *listed]
    more = len(missing) - len(worst)
    return "\n".join([*words, f"and {more} more"] if more else words)
