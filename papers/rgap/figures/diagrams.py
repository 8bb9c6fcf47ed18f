"""Diagrams of networks: bars of features, and skips, by layer or by residual block."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path

from gradleak.analysis.rank_analysis import LayerCount, analyse, critical, network_index
from gradleak.errors import ArtifactError
from gradleak.models.chain import Chain, ConvLayer, Layer, LinearLayer
from gradleak.plotting.layout import Page
from gradleak.plotting.style import BLUE, GREY, LEAST, RED, SHADE, SKY
from gradleak.plotting.wording import signed
from gradleak.runtime.artifacts import read_csv

# Inches: between bars, bar height, margin for the bulge of skips, and from name to RA-i.
PITCH, BAR, MARGIN, NAME = 0.27, 0.105, 0.14, 0.12
# Inches, by block: between bars, bar height, widest bar, bulge of skips beside it, left margin.
BLOCK_PITCH, BLOCK_BAR, ROOM, BULGE, EDGE = 0.46, 0.11, 0.78, 0.14, 0.09
BLOCK_WIDTH = EDGE + ROOM + BULGE + 0.12  # inches, of a diagram by block
Bars = Sequence[tuple[str, float, str]]  # label, width in inches, and colour of each


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


def _features(count: LayerCount) -> int:
    return count.unknowns - count.carried


def widest(chains: list[Chain]) -> int:
    """Number of features of the widest layer, which sets the scale of bars."""
    return max(_features(count) for chain in chains for count in analyse(chain))


def depth(chain: Chain) -> float:
    """Height of a diagram in inches."""
    return len(chain.layers) * PITCH + BAR


def draw(page: Page, left: float, top: float, width: float, chain: Chain, most: int) -> None:
    """Draw a network, `depth` inches high; `most` features fill the `width` in inches."""
    counts, middle = analyse(chain), width / 2
    worst = critical(counts)
    axes = _plane(page, left, top, width, depth(chain))
    sizes = [*map(_features, counts), chain.classes]
    wide = [max((width - 2 * MARGIN) * size / most, 0.02) for size in sizes]
    colours = [*(RED if count is worst else BLUE for count in counts), SKY]
    bars = list(zip(map(str, sizes), wide, colours, strict=True))
    _bars(axes, middle, bars, (PITCH, BAR), letter=0.06, side=1)
    for place, (layer, count) in enumerate(zip(chain.layers, counts, strict=True)):
        said = f"{layer_name(layer)}  |W| {count.weights}  RA-i {signed(count.index)}"
        # In bold, neighbours of Figure 2 would touch.
        colour = RED if count is worst else GREY
        _words(axes, middle, place * PITCH + (BAR + PITCH) / 2, said, colour)
        if skip := getattr(layer, "skip", 0):
            rows = place + 1 - skip, place + 1
            start, end = _ends(middle, wide, rows, PITCH, BAR, 0.02)
            # Bulges to the right.
            _arrow(axes, "black", posA=start, posB=end, connectionstyle="arc3,rad=-0.5")


def _plane(page: Page, left: float, top: float, width: float, high: float) -> Axes:
    """Axes in inches from the upper left corner, for the shapes of a diagram."""
    axes = page.axes(left, top, width, high)
    axes.set(xlim=(0, width), ylim=(high, 0))
    axes.axis("off")
    return axes


def _bars(
    axes: Axes, middle: float, bars: Bars, sizes: tuple[float, float], letter: float, side: int
) -> None:
    """Draw bars of `sizes` apart and high; a label wider than its bar is at its `side`, 1 or -1."""
    pitch, high = sizes
    for place, (label, extent, colour) in enumerate(bars):
        y, said = place * pitch, label + " out" * (place == len(bars) - 1)
        _bar(axes, middle, y, extent, colour, high)
        if extent > letter * len(label):
            _words(axes, middle, y + high / 2, said, "white")
        else:
            x, where = middle + side * (extent / 2 + 0.03), "left" if side > 0 else "right"
            _words(axes, x, y + high / 2, said, "black", ha=where)


def _bar(axes: Axes, middle: float, y: float, extent: float, colour: str, high: float) -> None:
    axes.add_patch(Rectangle((middle - extent / 2, y), extent, high, facecolor=colour, lw=0))


def _words(axes: Axes, x: float, y: float, said: str, colour: str, **style: Any) -> None:
    where = {"ha": "center", "va": "center_baseline", **style}
    axes.text(x, y, said, color=colour, fontsize=LEAST, **where)


def _ends(
    middle: float, wide: Sequence[float], rows: Iterable[int], pitch: float, high: float, in_: float
) -> list[tuple[float, float]]:
    """Ends of a skip between two bars, at their right edges, `in_` inches nearer to each other."""
    return [
        (middle + wide[row] / 2, row * pitch + high / 2 + shift)
        for row, shift in zip(rows, (in_, -in_), strict=True)
    ]


def _arrow(axes: Axes, colour: str, **style: Any) -> None:
    style = {"arrowstyle": "-|>", "linestyle": "-", "linewidth": 0.8, **style}
    axes.add_patch(FancyArrowPatch(shrinkA=0, shrinkB=0, mutation_scale=4, color=colour, **style))


@dataclass(frozen=True)
class Step:
    """Layer or block between two bars of a diagram."""

    name: str
    features: tuple[int, ...]  # (C, H, W) of its input
    alone: int  # largest RA-i of its layers without virtual constraints from before them
    block: bool = False  # whether it is a residual block
    cut: bool = False  # whether the block has no skip
    projected: bool = False  # whether the block's skip has a projection


def steps(chain: Chain, base: Chain) -> list[Step]:
    """Layers and blocks of a network from the image to the output.

    Blocks are the layers spanned by a skip of `base`, of which `chain` must be a variant.
    """
    if len(chain.layers) != len(base.layers):
        raise ArtifactError(
            f"{chain.name} has {len(chain.layers)} layers, and {base.name}, which it is drawn as a "
            f"variant of, {len(base.layers)}; take networks that differ in skips alone."
        )
    skips = {end: getattr(layer, "skip", 0) for end, layer in enumerate(base.layers)}
    ends = {end + 1 - skip: end for end, skip in skips.items() if skip}
    found, place, number = list[Step](), 0, 0
    while place < len(chain.layers):
        end = ends.get(place, place)
        number += place in ends
        found.append(_step(chain, place, end, number if place in ends else 0))
        place = end + 1
    return found


def _step(chain: Chain, first: int, last: int, number: int) -> Step:
    """Layers `first` to `last`: block `number`, or a layer outside of blocks if that is 0."""
    alone = max(count.alone for count in analyse(chain)[first : last + 1])
    layer, end = chain.layers[first], chain.layers[last]
    if isinstance(layer, LinearLayer):
        before = chain.layers[first - 1] if first else None
        if not isinstance(before, ConvLayer):
            return Step("fc", (layer.inputs,), alone)
        # Features ahead of the pool.
        features = (before.shape.filters, *before.shape.output)
        return Step("mean, fc" if prod(features[1:]) > 1 else "fc", features, alone)
    features = (layer.shape.channels, *layer.shape.size)
    if not number or isinstance(end, LinearLayer):
        return Step(layer_name(layer), features, alone)
    return Step(f"block {number}", features, alone, True, not end.skip, end.projection is not None)


def block_depth(base: Chain) -> float:
    """Height in inches of a diagram by block."""
    return len(steps(base, base)) * BLOCK_PITCH + BLOCK_BAR


def draw_blocks(page: Page, left: float, top: float, chain: Chain, base: Chain) -> None:
    """Draw a variant of `base` by block, `BLOCK_WIDTH` by `block_depth` inches."""
    parts, middle = steps(chain, base), EDGE + ROOM / 2
    sizes = [part.features for part in parts] + [(chain.classes,)]
    most = max(map(prod, sizes))
    wide = [max(ROOM * prod(size) / most, 0.02) for size in sizes]
    axes = _plane(page, left, top, BLOCK_WIDTH, block_depth(base))
    labels = ["×".join(map(str, size)) for size in sizes]
    bars = list(zip(labels, wide, [BLUE] * len(parts) + [SKY], strict=True))
    # Labels on the left, away from skips.
    _bars(axes, middle, bars, (BLOCK_PITCH, BLOCK_BAR), letter=0.046, side=-1)
    high = BLOCK_PITCH - BLOCK_BAR - 0.07
    for place, part in enumerate(parts):
        y = place * BLOCK_PITCH + (BLOCK_BAR + BLOCK_PITCH) / 2
        if part.block:
            _bar(axes, middle, y - high / 2, ROOM, SHADE, high)
        alone = f"alone {signed(part.alone)}", RED, part.alone > 0
        lines = (-0.055, part.name, "black", part.block), (0.055, *alone)
        for shift, said, colour, bold in lines:
            weight = "bold" if bold else "normal"
            _words(axes, middle, y + shift, said, colour if bold else GREY, weight=weight)
        if part.block:
            rows = place, place + 1
            _skip(axes, _ends(middle, wide, rows, BLOCK_PITCH, BLOCK_BAR, 0.025), part)


def _skip(axes: Axes, ends: Sequence[tuple[float, float]], part: Step) -> None:
    (x0, y0), (x1, y1) = ends
    lane = EDGE + ROOM + 0.03
    # A cubic Bézier curve reaches three quarters of the way to its control points.
    out = lane + BULGE * 4 / 3
    points = [(x0, y0), (lane, y0), (out, y0), (out, y1), (lane, y1), (x1, y1)]
    codes = [Path.MOVETO, Path.LINETO, Path.CURVE4, Path.CURVE4, Path.CURVE4, Path.LINETO]
    colour, path = RED if part.cut else "black", Path(points, codes)
    cut: dict[str, Any] = {"arrowstyle": "-", "linestyle": (0, (2, 2))} if part.cut else {}
    _arrow(axes, colour, path=path, **cut)
    if part.cut or part.projected:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        style: dict[str, Any] = {"ha": "center", "va": "center", "color": colour, "bbox": box}
        style |= {"fontsize": 5.5, "weight": "bold"} if part.cut else {"fontsize": LEAST}
        axes.text(lane + BULGE, (y0 + y1) / 2, "cut" if part.cut else "1×1", **style)


def read_ranks(paths: Iterable[str]) -> pd.DataFrame:
    """Read measured ranks of convolutions, a row per layer: under the first seed, for one image."""
    found = pd.concat([read_csv(path, ["model", "layer", "rank"]) for path in paths])
    return found[found["rank"].notna()].drop_duplicates(["model", "layer"])


def rank_words(row: pd.Series) -> str:
    """Format the measured rank of a layer: ``conv2: 3188 of 3468``."""
    return f"{row['layer']}: {int(row['rank'])} of {int(row['inputs'])}"
