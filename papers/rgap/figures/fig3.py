"""R-GAP Figure 3: CNN6 and CNN6-d, and reconstructions by each attack."""

import pandas as pd
from matplotlib.figure import Figure

from gradleak.plotting.layout import EDGE, MIDDLE, SMALL, Grid, Page, drawing
from gradleak.plotting.reader import Content, caption, median
from gradleak.plotting.style import GREY, PAGE
from gradleak.plotting.wording import typical
from gradleak.runtime.tidy import Given
from papers.rgap.figures import diagrams

# Inches: column of the diagram, headings of a block, text under a picture and the block.
DIAGRAM, HEAD, UNDER, FOOT = 1.62, 0.34, 0.17, 0.2
MOST = 3  # images of each network
WORST = 2  # rank-deficient layers listed under the diagram


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the figure; `files` has ``rank`` (rank analyses) beside those of `Content.read`."""
    content = Content.read(files, words)
    chains, ranks = content.chains, diagrams.read_ranks(files["rank"])
    under = [UNDER] * min(MOST, content.shared())
    grid = Grid.fit(DIAGRAM, HEAD, PAGE, [1 + len(content.attacks)], under)
    block = max(grid.bottom + FOOT, HEAD + max(map(diagrams.depth, chains)) + 0.54)
    most = diagrams.widest(chains)
    with drawing(words["title"], content.describe(scale), len(chains) * block) as page:
        for place, chain in enumerate(chains):
            top = place * block
            page.text(EDGE, top + 0.14, content.name(chain), weight="bold")
            diagrams.draw(page, 0.0, top + HEAD, DIAGRAM - 0.04, chain, most)
            low = top + HEAD + diagrams.depth(chain) + 0.06
            said = _rank_words(ranks[ranks["model"] == chain.name])
            page.text(DIAGRAM / 2, low, said, ha="center", va="top", fontsize=SMALL)
            _block(page, grid.moved(down=top), content, chain.name)
    return page.figure


def _block(page: Page, grid: Grid, content: Content, model: str) -> None:
    grid.head(page, ["Original", *content.attacks.values()])
    rows = range(len(grid.tops))
    grid.fill(page, 0, map(content.original, rows))
    foot, style = grid.bottom + 0.09, {"va": "center", "fontsize": SMALL, "color": GREY}
    page.text(DIAGRAM + grid.side, foot, "median of all:", ha="right", **style)
    for column, attack in enumerate(content.attacks, start=1):
        panel = content.panel(model, attack)
        answers = [panel.answer(row) for row in rows]
        grid.fill(page, column, [content.cell(each, caption(each)) for each in answers])
        said = typical(median(panel.chosen)).removeprefix("median ")
        page.text(grid.middle(column), foot, said, fontsize=6, weight="bold", **MIDDLE)


def _rank_words(ranks: pd.DataFrame) -> str:
    """List the layers that are rank-deficient by measurement."""
    if ranks.empty:
        return ""
    missing = ranks.assign(missing=ranks["inputs"] - ranks["rank"]).query("missing > 0")
    if missing.empty:
        return "Rank measured: full\nin every convolution"
    listed = [diagrams.rank_words(row) for _, row in missing.nlargest(WORST, "missing").iterrows()]
    more = [f"and {len(missing) - WORST} more"] if len(missing) > WORST else []
    return "\n".join(["Rank measured, less than full:", *listed, *more])
