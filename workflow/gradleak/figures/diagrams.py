"""Diagrams of networks: a bar for each layer's features, what constrains them, and skips."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from gradleak.artifacts import read_csv
from gradleak.figures.layout import Page
from gradleak.figures.style import BLUE, GREY, LEAST, RED, SKY
from gradleak.models.chain import Chain, ConvLayer, Layer
from gradleak.rank_analysis import analyse, critical, network_index

# Inches: from bar to bar, a bar's height, and the margin that skips bulge into.
PITCH, BAR, MARGIN = 0.27, 0.105, 0.14
MINUS = "\N{MINUS SIGN}"
# How the words of a diagram are read, for the footer of a figure that has one.
KEY = (
    "Diagrams: bars are as wide as a layer has input features (one scale), the image above; "
    "conv 4×4/2 is a convolution with kernel 4×4 and stride 2, |W| its weights, and RA-i = |x| − "
    "|W| − |z| − |V| its unknowns less its constraints, positive where rank is missing. Orange: "
    "the critical layer, that of the largest RA-i, which is the network's."
)
# Of a figure that has `index_words` in `index_colour` too.
HEADED = f"{KEY} Orange too: RA-i above a diagram, where it is positive."


@dataclass(frozen=True)
class Band:
    """A layer of a diagram: its input features, its name, |W| and RA-i."""

    features: int
    name: str
    weights: int
    index: int
    critical: bool
    skip: int


def bands(chain: Chain) -> list[Band]:
    """Layers of a network from the image to the output."""
    counts = analyse(chain)
    worst = critical(counts)
    return [
        Band(
            count.unknowns - count.carried,
            layer_name(layer),
            count.weights,
            count.index,
            count is worst,
            layer.skip if isinstance(layer, ConvLayer) else 0,
        )
        for layer, count in zip(chain.layers, counts, strict=True)
    ]


def layer_name(layer: Layer) -> str:
    """A layer in a word: ``conv 4×4/2`` for a kernel of 4×4 and a stride of 2."""
    if not isinstance(layer, ConvLayer):
        return "fc"
    (height, width), (down, right) = layer.shape.kernel, layer.shape.stride
    stride = f"/{down}" if down == right else f"/{down}×{right}"
    return f"conv {height}×{width}{stride}"


def signed(value: int) -> str:
    """A whole number with a true minus sign."""
    return str(value).replace("-", MINUS)


def index_words(chain: Chain) -> str:
    """RA-i of a network, that of its critical layer."""
    return f"RA-i = {signed(network_index(chain))}"


def index_colour(chain: Chain) -> str:
    """Orange where a network lacks rank."""
    return RED if network_index(chain) > 0 else "black"


def widest(chains: list[Chain]) -> int:
    """Features of the widest layer of all, which bars are measured by."""
    return max(band.features for chain in chains for band in bands(chain))


def depth(chain: Chain) -> float:
    """Inches that a diagram takes downwards."""
    return len(chain.layers) * PITCH + BAR


def draw(page: Page, left: float, top: float, width: float, chain: Chain, most: int) -> None:
    """Draw a network.

    Parameters
    ----------
    page
        Where to draw.
    left, top, width
        Place in inches; the diagram takes `depth` of them downwards.
    chain
        The network.
    most
        Features that fill the width, from `widest`.
    """
    layers = bands(chain)
    axes = page.axes(left, top, width, depth(chain))
    axes.set(xlim=(0, width), ylim=(depth(chain), 0))
    axes.axis("off")
    middle, room = width / 2, width - 2 * MARGIN
    sizes = [band.features for band in layers] + [chain.classes]
    wide = [max(room * size / most, 0.02) for size in sizes]
    for place, (size, extent) in enumerate(zip(sizes, wide, strict=True)):
        y = place * PITCH
        worst = place < len(layers) and layers[place].critical
        colour = RED if worst else (SKY if place == len(layers) else BLUE)
        axes.add_patch(Rectangle((middle - extent / 2, y), extent, BAR, facecolor=colour, lw=0))
        inside = extent > 0.06 * len(str(size))
        axes.text(
            middle if inside else middle + extent / 2 + 0.03,
            y + BAR / 2,
            f"{size}" if place < len(layers) else f"{size} out",
            fontsize=5,
            ha="center" if inside else "left",
            va="center_baseline",
            color="white" if inside else "black",
        )
    _words(axes, middle, layers)
    for place, band in enumerate(layers):
        if band.skip:
            ends = [
                (middle + wide[k] / 2, k * PITCH + BAR / 2 + shift)
                for k, shift in ((place + 1 - band.skip, 0.02), (place + 1, -0.02))
            ]
            axes.add_patch(_arc(*ends))


def _words(axes: Axes, middle: float, layers: list[Band]) -> None:
    """Name, |W| and RA-i of each layer, between the bars."""
    for place, band in enumerate(layers):
        axes.text(
            middle,
            place * PITCH + (BAR + PITCH) / 2,
            f"{band.name}  |W| {band.weights}  RA-i {signed(band.index)}",
            fontsize=LEAST,
            ha="center",
            va="center_baseline",
            color=RED if band.critical else GREY,  # bold, neighbours of Figure 2 would touch
        )


def _arc(start: tuple[float, float], end: tuple[float, float]) -> FancyArrowPatch:
    """Arrow of a skip, bulging to the right."""
    return FancyArrowPatch(
        start,
        end,
        connectionstyle="arc3,rad=-0.5",
        arrowstyle="-|>",
        mutation_scale=4,
        shrinkA=0,
        shrinkB=0,
        linewidth=0.8,
        color="black",
    )


def read_ranks(paths: Iterable[str]) -> pd.DataFrame:
    """Measured ranks of convolutions, a row for each layer: under the first seed, at one image.

    Raises
    ------
    ArtifactError
        If a file is missing or damaged.
    """
    frames = []
    for path in paths:
        frame = read_csv(path, ["model", "layer", "rank"])
        frames.append(frame[frame["rank"].notna()].drop_duplicates(["model", "layer"]))
    if not frames:
        return pd.DataFrame(columns=["model", "layer", "inputs", "rank", "critical"])
    return pd.concat(frames, ignore_index=True)


def rank_words(row: pd.Series) -> str:
    """Measured rank of a layer: ``conv2: 3188 of 3468``."""
    return f"{row['layer']}: {int(row['rank'])} of {int(row['inputs'])}"
