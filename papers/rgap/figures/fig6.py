"""R-GAP Figure 6: networks without and with a skip connection under DLG."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.errors import ArtifactError
from gradleak.models.chain import Chain
from gradleak.plotting.charts import log_limits, log_ticks
from gradleak.plotting.layout import SMALL, drawing
from gradleak.plotting.reader import Content, caption, median
from gradleak.plotting.style import BLUE, GREY, PAGE
from gradleak.plotting.wording import typical
from gradleak.runtime.tidy import Given
from papers.rgap.figures import diagrams

# Inches: a diagram, gaps, a picture, text under it, heading of a pair.
DIAGRAM, GAP, SIDE, UNDER, HEAD = 1.48, 0.06, 0.76, 0.18, 0.36
NETWORK = DIAGRAM + SIDE + 2 * GAP
SHOWN = 0
WITH = "_skip"  # suffix of the model with a skip


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the figure of one attack; ``names`` are of pairs, by the model without the skip."""
    content = Content.read(files, words)
    pairs = _pairs(content.chains)
    attack, heading = next(iter(content.attacks.items()))
    tall = max(diagrams.depth(chain) for pair in pairs for chain in pair)
    block = HEAD + max(tall, 2 * (SIDE + UNDER)) + 0.06
    low, high = log_limits(content.table(attack)["mse"], 3, 6)
    most = diagrams.widest([chain for pair in pairs for chain in pair])
    with drawing(words["title"], content.describe(scale), len(pairs) * block) as page:
        for row, pair in enumerate(pairs):
            top = row * block + HEAD
            panels = [content.panel(chain.name, attack) for chain in pair]
            for column, chain in enumerate(pair):
                left = column * NETWORK
                name = f"{content.name(pair[0])}, {'with' if column else 'without'} skip"
                diagrams.head(page, left + 0.06, row * block + 0.13, name, chain, fontsize=6.5)
                diagrams.draw(page, left, top, DIAGRAM, chain, most)
                found = panels[column].answer(SHOWN)
                cell = content.cell(found, f"{heading} {caption(found)}")
                page.picture(left + DIAGRAM, top, SIDE, content.original(SHOWN, "original"))
                page.picture(left + DIAGRAM, top + SIDE + UNDER, SIDE, cell)
            left = 2 * NETWORK + 0.46
            axes = page.axes(left, top, PAGE - left - 0.1, block - HEAD - 0.52)
            _points(axes, [panel.table for panel in panels], (low, max(high, 0.3)))
            axes.set_xlabel(f"MSE of all starts of {heading}")
    return page.figure


def _pairs(chains: Sequence[Chain]) -> list[tuple[Chain, Chain]]:
    """Pairs of networks with equal names, without and with a skip."""
    named = {chain.name: chain for chain in chains}
    pairs = [(c, named[c.name + WITH]) for c in chains if c.name + WITH in named]
    if not pairs:
        raise ArtifactError(
            f"No pair of networks to draw; give models NAME and NAME{WITH} in config.yaml."
        )
    return pairs


def _points(axes: Axes, pair: Sequence[pd.DataFrame], limits: tuple[float, float]) -> None:
    inside = axes.get_yaxis_transform()
    for height, (rows, colour) in enumerate(zip(pair, (GREY, BLUE), strict=True)):
        works = rows[rows["status"] == "ok"]["mse"].clip(lower=limits[0])
        spread = height + 0.24 * np.linspace(-1, 1, max(len(rows), 2))[: len(rows)]
        axes.plot(works, spread[: len(works)], "o", color=colour, alpha=0.6, ms=3, mew=0)
        failed, middle = len(rows) - len(works), median(rows)
        axes.plot([0.97] * failed, spread[len(works) :], "x", color=colour, ms=3, transform=inside)
        if np.isfinite(middle):
            axes.plot((middle, middle), (height - 0.32, height + 0.32), color="black")
        words = typical(middle) + (f", {failed} of {len(rows)} failed" if failed else "")
        axes.text(0.02, height - 0.36, words, transform=inside, fontsize=SMALL, va="bottom")
    axes.set(xscale="log", xlim=limits, ylim=(1.5, -0.55), yticks=(0, 1))
    axes.set_yticklabels(("without", "with"))
    log_ticks(axes.xaxis, 5)
