"""Images that are missing: one mark in all figures, short words in it, the reason in the footer."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from matplotlib.transforms import Transform

from gradleak.figures.style import GREY, GRID

Box = tuple[float, float, float, float]  # left, lower, right, upper edge
NUMBER = re.compile(r"(?<![\w.])[-\N{MINUS SIGN}]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


def mark(axes: Axes, boxes: Sequence[Box] = ((0, 0, 1, 1),), data: bool = False) -> None:
    """Grey with a cross, all over the axes or in `boxes`: there is no image.

    Boxes are parts of the axes, or given in units of the `data`.
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
    """Reasons of a figure, each once; those that differ in numbers alone are one."""

    def __init__(self) -> None:
        self._values: dict[str, list[list[str]]] = {}

    def short(self, reason: str, letters: int, lines: int = 1, other: str = "no image") -> str:
        """A reason that fits on `lines` of so many letters; if it does not, it has a note too.

        Then its first clause stands for it, or `other`, with the number of the note.
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
