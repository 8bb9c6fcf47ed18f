"""R-GAP Figure 2: five networks, their rank analysis, and reconstructions."""

from typing import Any

from matplotlib.figure import Figure

from gradleak.analysis.rank_analysis import analyse
from gradleak.plotting.layout import EDGE, SMALL, Grid, drawing
from gradleak.plotting.reader import Content
from gradleak.plotting.style import GREY, PAGE
from gradleak.runtime.tidy import Given
from papers.rgap.figures import diagrams

# Inches: column of labels, gaps, text above a diagram, a picture, text under it.
LABEL, GAP, HEAD, SIDE, UNDER = 0.82, 0.06, 0.42, 0.86, 0.29
SHOWN = 0  # batch of the image
HEADING: dict[str, Any] = {"ha": "center", "va": "bottom"}
RANK: dict[str, Any] = {"va": "top", "fontsize": SMALL, "color": GREY}


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the figure; `files` has ``rank`` (rank analyses) beside those of `Content.read`."""
    content = Content.read(files, words)
    chains, attacks = content.chains, content.attacks
    ranks = diagrams.read_ranks(files["rank"])
    ranks = ranks[ranks["critical"].astype(bool)]
    said = {row["model"]: diagrams.rank_words(row) for _, row in ranks.iterrows()}
    most = diagrams.widest(chains)
    top = HEAD + max(map(diagrams.depth, chains)) + 0.24
    width = (PAGE - LABEL - GAP) / len(chains)
    lefts = [LABEL + column * width for column in range(len(chains))]
    tops = [top + row * (SIDE + UNDER) for row in range(len(attacks) + 1)]
    grid = Grid([left + (width - SIDE) / 2 for left in lefts], tops[:-1], SIDE, tops[-1])
    with drawing(words["title"], content.describe(scale), grid.bottom) as page:
        page.picture(EDGE, HEAD + 0.1, LABEL - 0.16, content.original(SHOWN))
        page.text(EDGE, HEAD + 0.06, "Original", va="bottom", fontsize=6)
        page.text(EDGE, top - 0.19, "Rank measured", **RANK)
        grid.label(page, list(attacks.values()))
        for column, (chain, left) in enumerate(zip(chains, lefts, strict=True)):
            middle, weights = grid.middle(column), sum(c.weights for c in analyse(chain))
            diagrams.head(page, middle, 0.13, content.name(chain), chain, **HEADING)
            page.text(middle, 0.36, f"|W| = {weights:,} in all", fontsize=SMALL, **HEADING)
            diagrams.draw(page, left + 0.02, HEAD, width - 0.04, chain, most)
            page.text(middle, top - 0.19, said.get(chain.name, ""), ha="center", **RANK)
            panels = [content.panel(chain.name, attack) for attack in attacks]
            grid.fill(page, column, [content.typical(panel, SHOWN) for panel in panels])
    return page.figure
