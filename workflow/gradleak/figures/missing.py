"""Images that are missing: one mark in all figures, short words in it, the reason in the footer."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import Transform

from gradleak.figures.pictures import FOOTER_LINE, PER_INCH, SMALL
from gradleak.figures.style import GREY, GRID, LEAST

# Left, lower, right, upper edge.
Box = tuple[float, float, float, float]
# Inches that a letter and a line of the smallest words take, and the part of a frame they may.
LETTER, LINE, PART = 0.6 * LEAST / 72, 1.2 * LEAST / 72, 0.8
FEWEST, MOST_LINES = 8, 4
NUMBER = re.compile(r"(?<![\w.])[-\N{MINUS SIGN}]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


def mark(axes: Axes, boxes: Sequence[Box] = ((0, 0, 1, 1),), data: bool = False) -> None:
    """Grey with a cross: there is no image.

    Parameters
    ----------
    axes
        Where to draw.
    boxes
        Places without an image, by default all of the axes.
    data
        Whether boxes are given in units of the data, instead of parts of the axes.
    """
    where: Transform = axes.transData if data else axes.transAxes
    strokes = []
    for left, low, right, high in boxes:
        box = Rectangle((left, low), right - left, high - low, facecolor=GRID, lw=0)
        box.set(transform=where, zorder=0 if not data else 1)
        axes.add_patch(box)
        strokes += [[(left, low), (right, high)], [(left, high), (right, low)]]
    lines = LineCollection(strokes, colors=GREY, linewidths=0.3, transform=where, zorder=1)
    axes.add_collection(lines, autolim=False)


def draw_missing(axes: Axes, reason: str) -> None:
    """Mark a frame, and write why there is no image: in full, or short with a note's number."""
    mark(axes)
    box, (width, height) = axes.get_position(), _figure(axes).get_size_inches()
    letters = max(FEWEST, int(PART * box.width * width / LETTER))
    lines = min(MOST_LINES, int(PART * box.height * height / LINE))
    axes.text(
        0.5,
        0.5,
        "\n".join(textwrap.wrap(noted(axes, reason, letters, lines), letters)),
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=LEAST,
        bbox={"facecolor": GRID, "edgecolor": "none", "pad": 0.8},
    )


def noted(axes: Axes, reason: str, letters: int, lines: int = 1, other: str = "no image") -> str:
    """A reason that fits on `lines` of so many letters; if it does not, it has a note too.

    Then its first clause stands for it, or `other`, with the number of the note that `explain`
    writes into the footer.
    """

    def fits(words: str) -> bool:
        broken = textwrap.wrap(words, letters, break_long_words=False)
        return len(broken) <= lines and all(len(line) <= letters for line in broken)

    if fits(reason):
        return reason
    number = _NOTES.setdefault(_figure(axes), Notes()).number(reason)
    clause = f"{re.split(r'[,;:.] ', reason)[0]} ({number})"
    return clause if fits(clause) else f"{other} ({number})"


class Notes:
    """Reasons of a figure, each once; those that differ in numbers alone are one."""

    def __init__(self) -> None:
        self._values: dict[str, list[list[str]]] = {}

    def number(self, reason: str) -> int:
        """Number of a reason's note, from 1 on."""
        form = NUMBER.sub("#", reason.replace("#", "number"))
        self._values.setdefault(form, []).append(NUMBER.findall(reason))
        return list(self._values).index(form) + 1

    def words(self) -> str:
        """All notes; in place of a number that differs its least and largest value."""
        said = []
        for number, (form, values) in enumerate(self._values.items(), start=1):
            ranges = iter([_range(column) for column in zip(*values, strict=True)])
            text = re.sub("#", lambda _, ranges=ranges: next(ranges), form)  # type: ignore[misc]
            said.append(f"({number}) {text.rstrip('.')}.")
        return f"Reasons: {' '.join(said)}" if said else ""


def _range(values: Sequence[str]) -> str:
    each = sorted(set(values), key=lambda value: float(value.replace("\N{MINUS SIGN}", "-")))
    return each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}"


_NOTES: WeakKeyDictionary[Figure, Notes] = WeakKeyDictionary()


def _figure(axes: Axes) -> Figure:
    found = axes.get_figure()
    assert isinstance(found, Figure)
    return found


def explain(figure: Figure) -> None:
    """Write the notes of a figure below its footer, for which it grows; to be called last."""
    words = _NOTES.pop(figure, Notes()).words()
    if not words:
        return
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(words, int(width * PER_INCH))
    grown = _grow(figure, FOOTER_LINE * len(lines) + 0.04)
    figure.text(
        0.06 / width,
        1 - (height - 0.06) / grown,
        "\n".join(lines),
        va="top",
        fontsize=SMALL,
        color=GREY,
        linespacing=1.35,
    )


def _grow(figure: Figure, more: float) -> float:
    """Add inches at the lower edge: all that is there keeps its size and distance from the upper.

    Returns the height.
    """
    width, height = figure.get_size_inches()
    share = height / (height + more)

    def moved(y: float) -> float:
        return float(1 - (1 - y) * share)

    anchors = [legend.get_bbox_to_anchor() for legend in figure.legends]
    corners = [figure.transFigure.inverted().transform((box.x0, box.y0)) for box in anchors]
    figure.set_size_inches(width, height + more)
    for axes in figure.axes:
        box = axes.get_position(original=True)
        axes.set_position((box.x0, moved(box.y0), box.width, box.height * share))
    for text in figure.texts:
        text.set_y(moved(text.get_position()[1]))
    for legend, (x, y) in zip(figure.legends, corners, strict=True):
        legend.set_bbox_to_anchor((x, moved(y)), figure.transFigure)
    return float(height + more)
