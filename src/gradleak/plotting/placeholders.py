"""Missing images: the same mark in all figures, short text in it, the reason in the footer."""

import re
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from matplotlib.transforms import Transform

from gradleak.plotting.style import GREY, GRID

Box = tuple[float, float, float, float]  # left, lower, right, upper edge
NUMBER = re.compile(r"(?<![\w.])[-\N{MINUS SIGN}]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


def mark(axes: Axes, boxes: Sequence[Box] = ((0, 0, 1, 1),), data: bool = False) -> None:
    """Mark missing images with a cross on grey, all over the axes or in `boxes`.

    Boxes are fractions of the axes, or in units of the `data`.
    """
    where: Transform = axes.transData if data else axes.transAxes
    strokes = []
    for left, low, right, high in boxes:
        box = Rectangle((left, low), right - left, high - low, facecolor=GRID, lw=0)
        box.set(transform=where, zorder=int(data))
        axes.add_patch(box)
        strokes += [[(left, low), (right, high)], [(left, high), (right, low)]]
    lines = LineCollection(strokes, colors=GREY, linewidths=0.3, transform=where, zorder=1)
    axes.add_collection(lines, autolim=False)


class Notes:
    """Distinct reasons of a figure; those that differ only in numbers are merged."""

    def __init__(self) -> None:
        self._values: dict[str, list[list[str]]] = {}

    def short(self, reason: str, letters: int, lines: int = 1, other: str = "no image") -> str:
        """Shorten a reason to `lines` of `letters` each, adding a note if it does not fit.

        The short form is then its first clause, or `other`, with the note's number.
        """

        def fits(words: str) -> bool:
            broken = textwrap.wrap(words, letters, break_long_words=False)
            return len(broken) <= lines and all(len(line) <= letters for line in broken)

        if fits(reason):
            return reason
        number = self._number(reason)
        clause = f"{re.split(r'[,;:.] ', reason)[0]} ({number})"
        return clause if fits(clause) else f"{other} ({number})"

    def _number(self, reason: str) -> int:
        form = NUMBER.sub("#", reason.replace("#", "number"))
        self._values.setdefault(form, []).append(NUMBER.findall(reason))
        return list(self._values).index(form) + 1

    def words(self) -> str:
        """Return all notes, with ranges for numbers that differ."""
        said = []
        for number, (form, values) in enumerate(self._values.items(), start=1):
            ranges = iter([_range(column) for column in zip(*values, strict=True)])
            text = re.sub("#", lambda _, ranges=ranges: next(ranges), form)  # type: ignore[misc]
            said.append(f"({number}) {text.rstrip('.')}.")
        return f"Reasons: {' '.join(said)}" if said else ""


def _range(values: Sequence[str]) -> str:
    each = sorted(set(values), key=lambda value: float(value.replace("\N{MINUS SIGN}", "-")))
    return each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}"
