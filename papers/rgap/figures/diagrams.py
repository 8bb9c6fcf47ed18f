"""Diagrams of networks: a bar for each layer's features, with its constraints and skips."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from gradleak.analysis.rank_analysis import analyse, critical, network_index
from gradleak.models.chain import Chain, ConvLayer, Layer
from gradleak.plotting.layout import Page
from gradleak.plotting.style import BLUE, GREY, LEAST, RED, SKY
from gradleak.plotting.wording import signed
from gradleak.runtime.artifacts import read_csv

# Inches: between bars, bar height, margin for the bulge of skips, and from name to RA-i.
PITCH, BAR, MARGIN, NAME = 0.27, 0.105, 0.14, 0.12
# Legend of a diagram, for the footer of its figure.
KEY = (
    "Diagrams: bars are as wide as a layer has input features (one scale), the image above; "
    "conv 4×4/2 is a convolution with kernel 4×4 and stride 2, |W| its weights, and RA-i = |x| − "
    "|W| − |z| − |V| its unknowns less its constraints, positive where rank is missing. Orange: "
    "the critical layer, that of the largest RA-i, which is the network's."
)
# For figures that also use `head`.
HEADED = f"{KEY} Orange too: RA-i above a diagram, where it is positive."


@dataclass(frozen=True)
class Band:
    """A layer of a diagram."""

    features: int  # of its input
    name: str
    weights: int  # |W|
    index: int  # RA-i
    critical: bool
    skip: int


def bands(chain: Chain) -> list[Band]:
    """Layers of a network from the image to the output."""
    counts = analyse(chain)
    return [
        Band(
            *(count.unknowns - count.carried, layer_name(layer), count.weights, count.index),
            *(count is critical(counts), getattr(layer, "skip", 0)),
        )
        for layer, count in zip(chain.layers, counts, strict=True)
    ]


def layer_name(layer: Layer) -> str:
    """Label of a layer: ``conv 4×4/2`` for a kernel of 4×4 and a stride of 2."""
    if not isinstance(layer, ConvLayer):
        return "fc"
    (height, width), (down, right) = layer.shape.kernel, layer.shape.stride
    stride = f"/{down}" if down == right else f"/{down}×{right}"
    return f"conv {height}×{width}{stride}"


def head(page: Page, left: float, top: float, name: str, chain: Chain, **style: Any) -> None:
    """Write a network's name above RA-i of its critical layer, orange if rank-deficient."""
    page.text(left, top, name, weight="bold", **style)
    colour = RED if network_index(chain) > 0 else "black"
    page.text(left, top + NAME, index_words(chain), color=colour, **style)


def index_words(chain: Chain) -> str:
    """RA-i of a network, that of its critical layer."""
    return f"RA-i = {signed(network_index(chain))}"


def widest(chains: list[Chain]) -> int:
    """Number of features of the widest layer, which sets the scale of bars."""
    return max(band.features for chain in chains for band in bands(chain))


def depth(chain: Chain) -> float:
    """Height of a diagram in inches."""
    return len(chain.layers) * PITCH + BAR


def draw(page: Page, left: float, top: float, width: float, chain: Chain, most: int) -> None:
    """Draw a network, `depth` inches high; `most` features fill the `width` in inches."""
    layers, middle = bands(chain), width / 2
    axes = plane(page, left, top, width, depth(chain))
    sizes = [band.features for band in layers] + [chain.classes]
    wide = [max((width - 2 * MARGIN) * size / most, 0.02) for size in sizes]
    for place, (size, extent) in enumerate(zip(sizes, wide, strict=True)):
        y, last = place * PITCH, place == len(layers)
        colour = SKY if last else RED if layers[place].critical else BLUE
        bar(axes, middle, y, extent, colour)
        inside, said = extent > 0.06 * len(str(size)), f"{size}" + " out" * last
        x = middle if inside else middle + extent / 2 + 0.03
        words(axes, x, y + BAR / 2, said, "white" if inside else "black", inside)
    for place, band in enumerate(layers):
        said = f"{band.name}  |W| {band.weights}  RA-i {signed(band.index)}"
        # In bold, neighbours of Figure 2 would touch.
        words(axes, middle, place * PITCH + (BAR + PITCH) / 2, said, RED if band.critical else GREY)
        if band.skip:
            ends = [
                (middle + wide[k] / 2, k * PITCH + BAR / 2 + shift)
                for k, shift in ((place + 1 - band.skip, 0.02), (place + 1, -0.02))
            ]
            # Bulges to the right.
            curve = {"posA": ends[0], "posB": ends[1], "connectionstyle": "arc3,rad=-0.5"}
            arrow(axes, color="black", **curve)


def plane(page: Page, left: float, top: float, width: float, high: float) -> Axes:
    """Axes in inches from the upper left corner, for the shapes of a diagram."""
    axes = page.axes(left, top, width, high)
    axes.set(xlim=(0, width), ylim=(high, 0))
    axes.axis("off")
    return axes


def bar(axes: Axes, middle: float, y: float, extent: float, colour: str, high: float = BAR) -> None:
    """Draw a bar below `y`."""
    axes.add_patch(Rectangle((middle - extent / 2, y), extent, high, facecolor=colour, lw=0))


def words(
    axes: Axes, x: float, y: float, said: str, colour: str, centred: bool = True, **style: Any
) -> None:
    """Write small text, centred or left-aligned."""
    where = {"ha": "center" if centred else "left", "va": "center_baseline", **style}
    axes.text(x, y, said, color=colour, fontsize=LEAST, **where)


def arrow(axes: Axes, **style: Any) -> None:
    """Draw a skip."""
    style = {"arrowstyle": "-|>", "linestyle": "-", "linewidth": 0.8, **style}
    axes.add_patch(FancyArrowPatch(shrinkA=0, shrinkB=0, mutation_scale=4, **style))


def read_ranks(paths: Iterable[str]) -> pd.DataFrame:
    """Read measured ranks of convolutions, a row per layer: under the first seed, for one image."""
    frames = [pd.DataFrame(columns=["model", "layer", "inputs", "rank", "critical"])]
    for path in paths:
        frame = read_csv(path, ["model", "layer", "rank"])
        frames.append(frame[frame["rank"].notna()].drop_duplicates(["model", "layer"]))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def rank_words(row: pd.Series) -> str:
    """Format the measured rank of a layer: ``conv2: 3188 of 3468``."""
    return f"{row['layer']}: {int(row['rank'])} of {int(row['inputs'])}"
