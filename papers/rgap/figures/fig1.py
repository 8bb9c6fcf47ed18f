"""R-GAP Figure 1: margin μ and gradient for three losses."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.models.losses import BINARY, MarginLoss
from gradleak.plotting.layout import drawing
from gradleak.plotting.style import BLUE, COLUMN, GREEN, GREY, ORANGE
from gradleak.runtime.tidy import Given

COLOURS = dict(zip(BINARY, (BLUE, ORANGE, GREEN), strict=True))
LABELS = dict(zip(BINARY, (-0.48, -0.66, -0.84), strict=True))
LEFT, RIGHT, LOW, HIGH = -1.5, 6.5, -1.15, 1.5
EXAMPLE = 0.5  # a μ whose other root is in the picture


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the losses; the figure needs no files."""
    with drawing(words["title"], words["note"], 2.45, COLUMN) as page:
        axes = page.axes(0.5, 0.07, COLUMN - 0.56, 2.0)
        axes.axhline(0, color=GREY, linewidth=0.6)
        axes.axvline(0, color=GREY, linewidth=0.6)
        for name in BINARY:
            _curve(axes, name)
        _roots(axes, MarginLoss("logistic"))
        axes.set(xlim=(LEFT, RIGHT), ylim=(LOW, HIGH), xlabel="margin μ = y·f(x)")
        axes.set_ylabel("∂ℓ/∂μ·μ")
    return page.figure


def _curve(axes: Axes, name: str) -> None:
    loss, colour = MarginLoss(name), COLOURS[name]
    turn, least = loss.turn, float(loss.product(np.nextafter(loss.turn, 0.0)))
    left = np.linspace(LEFT, turn, 200, endpoint=name != "hinge")
    for part in (left, np.linspace(turn, RIGHT, 300)):
        axes.plot(part, loss.product(part), color=colour)
    if name == "hinge":
        axes.plot((turn, turn), (least, 0.0), color=colour, linestyle=":")
        axes.plot(turn, 0.0, "o", color=colour)
    face = "white" if name == "hinge" else colour
    axes.plot(turn, least, "o", color=colour, markerfacecolor=face)
    words = f"{name}: least {least:.3f} at μ = {turn:.4g}".replace("-", "\N{MINUS SIGN}")
    axes.text(2.1, LABELS[name], words, color=colour, fontsize=6, va="center")


def _roots(axes: Axes, loss: MarginLoss) -> None:
    level = float(loss.product(EXAMPLE))
    small, large = loss.margins(level)
    axes.plot((LEFT, large), (level, level), color="black", linewidth=0.7, linestyle=(0, (4, 2)))
    axes.plot((small, large), (level, level), "D", color="black", markersize=3.5)
    words = f"∂ℓ/∂μ·μ = {level:.3f} has two roots:\n".replace("-", "\N{MINUS SIGN}")
    words += f"μ = {large:.3f}, say the image, and\nμ̃ = {small:.3f}, its twin, which is\n"
    words += f"the image times {small / large:.3f}"
    line = {"arrowstyle": "-", "linewidth": 0.5, "shrinkB": 3}
    axes.annotate(words, (large, level), (2.1, 1.0), fontsize=6, va="center", arrowprops=line)
    axes.annotate("", (small, level), (2.1, 0.66), arrowprops=line)
