"""A page measured in inches, grids of pictures on it, and marks for missing ones."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from matplotlib.transforms import Affine2D, ScaledTranslation, Transform

from gradleak.plotting.style import GREY, GRID, LEAST, PAGE, RED, new, styled

# Points from an image's edge to the baseline of each line under it, and its font size.
LINES = ((-7.5, 6.0), (-14.0, 5.5), (-20.0, 5.5))
SMALL = 5.5  # points: font size of the footer
FOOTER_LINE = SMALL * 1.35 * 1.17 / 72  # inches
TITLE = 0.27  # inches, height of the title
EDGE = 0.06  # inches between the page's edge and text
PER_INCH = 25  # characters of the footer
# Inches per letter and line of the smallest text, and the part of a frame it may fill.
LETTER, LINE, PART = 0.6 * LEAST / 72, 1.2 * LEAST / 72, 0.8
FEWEST, MOST_LINES = 8, 4
MIDDLE: dict[str, Any] = {"ha": "center", "va": "center"}
MOST_PIXELS = 224  # of a picture's side, the limit of visible detail
Box = tuple[float, float, float, float]  # left, lower, right, upper edge
_BARE = ContextVar("bare", default=False)
NUMBER = re.compile(r"(?<![\w.])[-\N{MINUS SIGN}]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


@dataclass(frozen=True)
class Cell:
    """A picture of a grid with the text under it."""

    image: np.ndarray | None = None  # (C, H, W), shown clipped to [0, 1]
    words: Sequence[str] = ()  # up to three lines, the first in black
    why: str = ""  # reason for a missing image; without one the frame has the mark alone
    crossed: bool = False  # whether a corner has the mark of a failed run
    absent: bool = False  # whether to draw only a dash, for cells that were not tried


class Page:
    """A figure with positions in inches from its left edge and below its title."""

    def __init__(self, width: float, height: float, title: float = TITLE) -> None:
        self.figure, self.width, self.height = new(width, height), width, height
        self.title = title
        self.notes = Notes()
        top = ScaledTranslation(0, 1, self.figure.transFigure)  # type: ignore[arg-type]
        down = Affine2D().translate(0, title).scale(1, -1)
        self.inches = down + self.figure.dpi_scale_trans + top
        self._boxes: list[tuple[Axes, tuple[float, float, float, float]]] = []

    def grow(self, inches: float) -> None:
        """Add room at the lower edge without moving or resizing the contents."""
        self.height += inches
        self.figure.set_size_inches(self.width, self.height)
        for axes, box in self._boxes:
            self._place(axes, box)

    def text(self, left: float, top: float, words: str, **style: Any) -> None:
        """Write text; `style` as for ``Figure.text``."""
        self.figure.text(left, top, words, transform=self.inches, **style)

    def small(self, top: float, words: Sequence[str]) -> None:
        """Write lines of the footer."""
        said = "\n".join(words)
        self.text(EDGE, top, said, color=GREY, va="top", fontsize=SMALL, linespacing=1.35)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes that fill a box."""
        axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self._boxes.append((axes, (left, top, width, height)))
        self._place(axes, self._boxes[-1][1])
        return axes

    def _place(self, axes: Axes, box: tuple[float, float, float, float]) -> None:
        left, top, width, height = box
        low = 1 - (self.title + top + height) / self.height
        axes.set_position((left / self.width, low, width / self.width, height / self.height))

    def picture(self, left: float, top: float, side: float, cell: Cell | None = None) -> Axes:
        """Draw a picture with the text under it, or an empty frame."""
        axes = self.axes(left, top, side, side)
        frame(axes)
        if cell is None:
            return axes
        if cell.absent:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "\N{EN DASH}", color=GREY, **MIDDLE)
            return axes
        if cell.image is not None:
            draw_pixels(axes, cell.image)
        elif cell.why:
            self.lack(axes, cell.why)
        else:
            mark(axes)
        if cell.crossed:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
            style = {"fontsize": 7, "color": RED, "weight": "bold", "bbox": box, **MIDDLE}
            axes.text(0.93, 0.93, "\N{MULTIPLICATION SIGN}", transform=axes.transAxes, **style)
        under(axes, *cell.words)
        return axes

    def swatch(
        self, left: float, middle: float, name: str, width: float = 0.16, fontsize: float = SMALL
    ) -> Axes:
        """Draw empty axes from 0 to 1 for a legend's symbol, with a label on the right."""
        axes = self.axes(left, middle - 0.05, width, 0.1)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.axis("off")
        self.text(left + width + 0.05, middle, name, va="center", fontsize=fontsize)
        return axes

    def legend(self, lines: Mapping[str, Artist], left: float, top: float, **style: Any) -> None:
        """Draw a legend of `lines` by label, at a place on the page."""
        style |= {"bbox_to_anchor": (left, top), "bbox_transform": self.inches, "borderaxespad": 0}
        self.figure.legend(lines.values(), lines, **style)

    def lack(self, axes: Axes, reason: str) -> None:
        """Mark a frame with the reason for its missing image, in full or short with a note."""
        mark(axes)
        box = axes.get_position()
        letters = max(FEWEST, int(PART * box.width * self.width / LETTER))
        lines = min(MOST_LINES, int(PART * box.height * self.height / LINE))
        words = "\n".join(textwrap.wrap(self.notes.short(reason, letters, lines), letters))
        style = {"bbox": {"facecolor": GRID, "edgecolor": "none", "pad": 0.8}, **MIDDLE}
        axes.text(0.5, 0.5, words, transform=axes.transAxes, fontsize=LEAST, **style)


@contextmanager
def bare(on: bool = True) -> Iterator[None]:
    """Draw figures without title and footer, for papers that have captions of their own."""
    token = _BARE.set(on)
    try:
        yield
    finally:
        _BARE.reset(token)


@contextmanager
def drawing(title: str, footer: str, depth: float, width: float = PAGE) -> Iterator[Page]:
    """Yield a page: title, `depth` inches, footer, and at the end reasons for missing images.

    Within `bare`, title and footer are left out. The reasons stay: the pictures refer to them.
    """
    with styled():
        top = EDGE if _BARE.get() else TITLE
        lines = [] if _BARE.get() else _wrapped(footer, width)
        page = Page(width, top + depth + FOOTER_LINE * len(lines) + 0.08, top)
        if not _BARE.get():
            page.text(EDGE, EDGE - TITLE, title, va="top", fontsize=8, weight="bold")
            page.small(depth + 0.04, lines)
        yield page
        if lines := _wrapped(page.notes.words(), width):
            under = page.height - page.title - 0.06
            page.grow(FOOTER_LINE * len(lines) + 0.04)
            page.small(under, lines)


def _wrapped(words: str, width: float) -> list[str]:
    return textwrap.wrap(" ".join(words.split()), int(width * PER_INCH))


@dataclass(frozen=True)
class Grid:
    """Positions of square pictures in rows and columns, in inches on a page."""

    lefts: Sequence[float]
    tops: Sequence[float]
    side: float
    bottom: float  # below the text under the last row

    @staticmethod
    def fit(
        left: float,
        top: float,
        right: float,
        columns: Sequence[int],
        under: Sequence[float],
        gap: float = 0.05,
        apart: float = 0.0,
        widest: float = np.inf,
    ) -> Grid:
        """Fit a grid between two edges; the gap behind the last column ends at the right one.

        `columns` has the number in each group, `apart` in addition to the `gap`; `under` is the
        space below each row; `widest` limits the width of a picture.
        """
        room = right - left - apart * (len(columns) - 1)
        side = min(room / sum(columns) - gap, widest)
        steps = [apart * (not column) for size in columns for column in range(size)]
        added = itertools.accumulate([0.0, *steps[1:]])
        lefts = [left + k * (side + gap) + more for k, more in enumerate(added)]
        tops = [top, *itertools.accumulate((side + more for more in under), initial=top)][1:]
        return Grid(lefts, tops[:-1], side, tops[-1])

    def moved(self, right: float = 0.0, down: float = 0.0) -> Grid:
        """Move the grid on the page."""
        lefts, tops = [left + right for left in self.lefts], [top + down for top in self.tops]
        return Grid(lefts, tops, self.side, self.bottom + down)

    def middle(self, column: int, last: int | None = None) -> float:
        """Middle of a column, or of a span up to the last column."""
        return (self.lefts[column] + self.lefts[column if last is None else last] + self.side) / 2

    def draw(self, page: Page, cells: Mapping[tuple[int, int], Cell]) -> None:
        """Draw cells, by row and column; missing ones stay empty."""
        for (row, column), cell in cells.items():
            page.picture(self.lefts[column], self.tops[row], self.side, cell)

    def fill(self, page: Page, column: int, cells: Iterable[Cell]) -> None:
        """Draw the cells of a column from the top."""
        self.draw(page, {(row, column): cell for row, cell in enumerate(cells)})

    def head(self, page: Page, words: Sequence[str], up: float = 0.04, **style: Any) -> None:
        """Write headings over the columns."""
        style = {"ha": "center", "va": "bottom", "fontsize": 6} | style
        for column, heading in enumerate(words):
            page.text(self.middle(column), self.tops[0] - up, heading, **style)

    def label(self, page: Page, words: Sequence[str], **style: Any) -> None:
        """Write row labels at the page's left edge."""
        style = {"va": "center", "weight": "bold"} | style
        for top, name in zip(self.tops, words, strict=True):
            page.text(EDGE, top + self.side / 2, name, **style)


def frame(axes: Axes) -> None:
    """Draw a thin line around the axes of an image, without ticks."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.3, color=GREY)


def draw_pixels(axes: Axes, image: np.ndarray) -> None:
    """Show an image (C, H, W), clipped to [0, 1]; one channel is grey."""
    pixels = np.clip(np.moveaxis(image, 0, -1), 0.0, 1.0)
    shown = pixels if pixels.shape[-1] == 3 else pixels[..., 0]
    axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")


def under(axes: Axes, *lines: str) -> None:
    """Write up to three lines under a picture, the first in black."""
    for place, words in enumerate(lines):
        drop, size = LINES[place]
        at: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
        at |= {"ha": "center", "fontsize": size, "color": GREY if place else "black"}
        axes.annotate(words, (0.5, 0.0), (0.0, drop), **at)


def displayed(image: np.ndarray) -> np.ndarray:
    """Downsample an image with more pixels than a page can show."""
    return image if image.shape[-1] <= MOST_PIXELS else shrunk(image, MOST_PIXELS)


def shrunk(image: np.ndarray, side: int) -> np.ndarray:
    """Resize an image (C, H, W) to (C, side, side): the mean over each new pixel's area."""
    rows, columns = (_areas(count, side) for count in image.shape[1:])
    return np.asarray(rows @ image.astype(np.float64) @ columns.T)


def _areas(count: int, side: int) -> np.ndarray:
    """Share (side, count) of each new pixel that each old pixel covers; rows add up to 1."""
    edges = np.arange(side + 1) * (count / side)
    low = np.maximum(edges[:-1, None], np.arange(count))
    high = np.minimum(edges[1:, None], np.arange(1, count + 1))
    return np.asarray(np.clip(high - low, 0.0, None) * (side / count))


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
