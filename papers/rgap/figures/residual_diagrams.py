"""Diagrams of residual networks: a bar of features between blocks, and the blocks' skips."""

from dataclasses import dataclass
from math import prod
from typing import Any

from matplotlib.axes import Axes
from matplotlib.path import Path

from gradleak.analysis.rank_analysis import analyse
from gradleak.errors import ArtifactError
from gradleak.models.chain import Chain, ConvLayer, LinearLayer
from gradleak.plotting.layout import Page
from gradleak.plotting.style import BLUE, GREY, LEAST, RED, SHADE, SKY
from gradleak.plotting.wording import signed
from papers.rgap.figures import diagrams
from papers.rgap.figures.diagrams import layer_name

# Inches: between bars, bar height, widest bar, bulge of skips beside it.
PITCH, BAR, ROOM, BULGE = 0.46, 0.11, 0.78, 0.14
EDGE = 0.09  # inches left of the widest bar
WIDTH = EDGE + ROOM + BULGE + 0.12  # of a diagram
# Legend of a diagram, for the footer of its figure.
KEY = (
    "Diagrams: bars are as wide as there are features (channels×height×width; one scale), the "
    "image above; a block is two convolutions 3×3. Arrows: skips, 1×1: through a projection; "
    "dashed: the skip that was cut. RA-i: unknowns less constraints of the layer where that is "
    "most, positive where rank is missing; alone: without the virtual constraints from before a "
    "layer or its block, in each block that of its worst layer."
)


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
    ends = {
        end + 1 - layer.skip: end
        for end, layer in enumerate(base.layers)
        if isinstance(layer, ConvLayer) and layer.skip
    }
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
    features = _entering(chain, first)
    if isinstance(layer, LinearLayer) or isinstance(end, LinearLayer):
        mean = len(features) == 3 and prod(features[1:]) > 1
        return Step("mean, fc" if mean else "fc", features, alone)
    if not number:
        return Step(layer_name(layer), features, alone)
    projected = end.projection is not None
    return Step(f"block {number}", features, alone, True, not end.skip, projected)


def _entering(chain: Chain, place: int) -> tuple[int, ...]:
    """Features at a layer: input of a convolution, features ahead of the pool for others."""
    layer, before = chain.layers[place], chain.layers[place - 1] if place else None
    if isinstance(layer, ConvLayer):
        return (layer.shape.channels, *layer.shape.size)
    if isinstance(before, ConvLayer):
        return (before.shape.filters, *before.shape.output)
    return (layer.inputs,)


def depth(count: int) -> float:
    """Height in inches of a diagram of `count` steps."""
    return count * PITCH + BAR


def draw(page: Page, left: float, top: float, chain: Chain, base: Chain) -> None:
    """Draw a variant of `base` at `left`, `top` in inches, with size `WIDTH` by `depth`."""
    parts = steps(chain, base)
    sizes = [part.features for part in parts] + [(chain.classes,)]
    most = max(map(prod, sizes))
    wide = [max(ROOM * prod(size) / most, 0.02) for size in sizes]
    axes = diagrams.plane(page, left, top, WIDTH, depth(len(parts)))
    middle = EDGE + ROOM / 2
    for place, (size, extent) in enumerate(zip(sizes, wide, strict=True)):
        y, last = place * PITCH, place == len(parts)
        diagrams.bar(axes, middle, y, extent, SKY if last else BLUE, BAR)
        said = "×".join(map(str, size)) + " out" * last
        if extent > 0.046 * len(said):
            diagrams.words(axes, middle, y + BAR / 2, said, "white")
        else:  # On the left, away from skips.
            x = middle - extent / 2 - 0.03
            diagrams.words(axes, x, y + BAR / 2, said, "black", ha="right")
    for place, part in enumerate(parts):
        y = place * PITCH
        _words(axes, middle, y + (BAR + PITCH) / 2, part)
        if part.block:
            ends = [
                (middle + wide[place + k] / 2, y + k * PITCH + BAR / 2 + shift)
                for k, shift in ((0, 0.025), (1, -0.025))
            ]
            _skip(axes, ends, part)


def _words(axes: Axes, middle: float, y: float, part: Step) -> None:
    high, lines = PITCH - BAR - 0.07, [(-0.055, part.name, part.block, "black")]
    lines.append((0.055, f"alone {signed(part.alone)}", part.alone > 0, RED))
    if part.block:
        diagrams.bar(axes, middle, y - high / 2, ROOM, SHADE, high)
    for shift, name, bold, colour in lines:
        weight = "bold" if bold else "normal"
        diagrams.words(axes, middle, y + shift, name, colour if bold else GREY, weight=weight)


def _skip(axes: Axes, ends: list[tuple[float, float]], part: Step) -> None:
    (x0, y0), (x1, y1) = ends
    lane = EDGE + ROOM + 0.03
    # A cubic Bézier curve reaches three quarters of the way to its control points.
    out = lane + BULGE * 4 / 3
    points = [(x0, y0), (lane, y0), (out, y0), (out, y1), (lane, y1), (x1, y1)]
    codes = [Path.MOVETO, Path.LINETO, Path.CURVE4, Path.CURVE4, Path.CURVE4, Path.LINETO]
    colour, path = RED if part.cut else "black", Path(points, codes)
    cut: dict[str, Any] = {"arrowstyle": "-", "linestyle": (0, (2, 2))} if part.cut else {}
    diagrams.arrow(axes, path=path, color=colour, **cut)
    if part.cut or part.projected:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        style: dict[str, Any] = {"ha": "center", "va": "center", "color": colour, "bbox": box}
        style |= {"fontsize": 5.5, "weight": "bold"} if part.cut else {"fontsize": LEAST}
        axes.text(lane + BULGE, (y0 + y1) / 2, "cut" if part.cut else "1×1", **style)
