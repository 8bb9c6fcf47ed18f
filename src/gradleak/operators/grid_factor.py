"""Cholesky factor of W^T W for large images: nested dissection, one factor for equal parts.

The rows of W at one output position tie the pixels of its window to each other and to no others.
A rectangle of positions is halved again and again. Of each half, pixels that lie in no window of
another are eliminated, and a Schur complement in the others, its border, is left to the rectangle
that both halves make up (George, SIAM J. Numer. Anal. 10, 1973). A convolution has the same rows at
every position, so that halves of one size are equal unless they end at an edge of the image, and
all equal ones are factored once.

For C channels, kernels of side k and images of side N this takes in the order of (C·k·N)³
operations and (C·k·N)² numbers; a dense factor takes (C·N²)³ and (C·N²)².
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, get_blas_funcs, get_lapack_funcs

from gradleak.operators.shape import Axis, ConvShape

# Unknowns of a rectangle that is not halved any more.
LEAF = 800
# Columns at a time when a triangle is mirrored.
STRIPE = 256

Place = tuple[int, int]


@dataclass(frozen=True)
class Span:
    """Positions along an axis, up to translation.

    Pixels are counted from the first one of the first window. Those from `low` to `high` are in
    the image, and those from `first` to `last` in no window outside the span.
    """

    count: int
    low: int
    high: int
    first: int
    last: int

    @classmethod
    def of(cls, axis: Axis, begin: int, end: int) -> Span:
        """Span of the positions from `begin` to `end`."""
        count, start = end - begin, begin * axis.stride - axis.padding
        length = (count - 1) * axis.stride + axis.kernel
        low = min(max(0, -start), length)  # it may meet nothing but padding
        return cls(
            count,
            low,
            max(low, min(length, axis.size - start)),
            max(0, axis.kernel - axis.stride) if begin else 0,
            count * axis.stride if end < axis.positions else length,
        )


@dataclass(frozen=True)
class Kind:
    """A rectangle of positions, up to translation."""

    down: Span
    across: Span

    @property
    def positions(self) -> int:
        """Number of positions."""
        return self.down.count * self.across.count

    def pixels(self) -> tuple[np.ndarray, np.ndarray]:
        """Pixels (P, 2) of its windows in the image, and whether they are in no others' (P,)."""
        spans = self.down, self.across
        axes = [np.arange(span.low, span.high) for span in spans]
        own = [(s.first <= a) & (a < s.last) for s, a in zip(spans, axes, strict=True)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
        return grid, np.logical_and.outer(*own).ravel()


@dataclass
class Front:
    """A kind's own pixels, which it eliminates, and its border, both (·, 2), with their factor."""

    own: np.ndarray
    border: np.ndarray
    halves: tuple[tuple[Kind, Place], ...] = ()  # and where their pixels begin
    places: list[Place] = field(default_factory=list)  # first pixel of each of its rectangles
    lower: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))  # L of its own pixels
    below: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))  # L of its border


class Cost(NamedTuple):
    """Operations and memory of a factor."""

    operations: float  # of the factorisation
    solve: float  # operations of a solve
    numbers: float  # held at the most at one time


class Dissection:
    """Nested dissection of a convolution's output positions, without its numbers."""

    def __init__(self, shape: ConvShape) -> None:
        self.shape = shape
        self.fronts: dict[Kind, Front] = {}
        self._place((0, shape.output[0]), (0, shape.output[1]))
        # Halves come before what they make up.
        self.order = sorted(self.fronts, key=lambda kind: kind.positions)

    def _place(self, down: Place, across: Place) -> Kind:
        """Add a rectangle of positions, given by its ends, and its halves."""
        axes, ends = self.shape.axes, (down, across)
        height, width = (Span.of(axis, *end) for axis, end in zip(axes, ends, strict=True))
        kind = Kind(height, width)
        known = self.fronts.get(kind)
        if known is None:
            grid, own = kind.pixels()
            front = Front(grid[own], grid[~own])
        else:
            front = known
        first = [end[0] * a.stride - a.padding for end, a in zip(ends, axes, strict=True)]
        front.places.append((first[0], first[1]))
        size = self.shape.channels * (height.high - height.low) * (width.high - width.low)
        if size > LEAF and kind.positions > 1:
            front.halves = self._halve(down, across)
            if known is None:
                left = np.zeros((height.high, width.high), dtype=bool)
                for half, at in front.halves:
                    left[tuple((self.fronts[half].border + at).T)] = True
                # The halves have eliminated the others.
                front.own = front.own[left[tuple(front.own.T)]]
        self.fronts[kind] = front
        return kind

    def _halve(self, down: Place, across: Place) -> tuple[tuple[Kind, Place], ...]:
        """Add the halves of a rectangle along its longer axis."""
        strides = [axis.stride for axis in self.shape.axes]
        lengths = [(e[1] - e[0] - 1) * s for e, s in zip((down, across), strides, strict=True)]
        tall = lengths[0] >= lengths[1]
        begin, end = down if tall else across
        middle = (begin + end) // 2
        found = []
        for half in ((begin, middle), (middle, end)):
            kind = self._place(half, across) if tall else self._place(down, half)
            at = (half[0] - begin) * strides[not tall]
            found.append((kind, (at, 0) if tall else (0, at)))
        return tuple(found)

    @cached_property
    def cost(self) -> Cost:
        """Operations and numbers of a factor, from sizes."""
        operations = solve = 0.0
        held = passing = most = 0
        left: dict[Kind, int] = {}
        waiting = Counter(half for front in self.fronts.values() for half, _ in front.halves)
        for kind in self.order:
            front = self.fronts[kind]
            own, border = (self.shape.channels * len(p) for p in (front.own, front.border))
            operations += own**3 / 3 + own**2 * border + own * border**2
            solve += 4.0 * len(front.places) * own * (own + border)
            held += own * (own + border)
            left[kind] = border**2
            passing += left[kind]
            most = max(most, held + passing)
            for half, _ in front.halves:
                waiting[half] -= 1
                if not waiting[half]:
                    passing -= left.pop(half)
        return Cost(operations, solve, most)


class GridFactor:
    """Solve (W^T W + damping·I) x = b.

    Parameters
    ----------
    weight
        Filters (O, C, kh, kw).
    dissection
        Of the convolution, whose windows have to cover all pixels.
    damping
        Added to the diagonal.
    dtype
        Of the factor, and so of the solution's accuracy.

    Raises
    ------
    LinAlgError
        If a pivot is not positive.
    """

    def __init__(
        self,
        weight: np.ndarray,
        dissection: Dissection,
        damping: float = 0.0,
        dtype: npt.DTypeLike = np.float64,
    ) -> None:
        self.shape, self.dtype = dissection.shape, np.dtype(dtype)
        # The factor is this one's own.
        fronts = {kind: replace(front) for kind, front in dissection.fronts.items()}
        self._order, self._fronts = dissection.order, fronts
        # Rows of W at one position, pixel by pixel of the window: (O, kh·kw·C).
        taps = weight.transpose(0, 2, 3, 1).reshape(self.shape.filters, -1).astype(np.float64)
        self._products = (taps.T @ taps).astype(self.dtype)
        waiting = Counter(half for front in self._fronts.values() for half, _ in front.halves)
        left: dict[Kind, np.ndarray] = {}
        for kind in self._order:
            front = self._fronts[kind]
            blocks = self._assembled(kind, left)
            for half, _ in front.halves:
                waiting[half] -= 1
                if not waiting[half]:
                    del left[half]
            left[kind] = _eliminated(front, *blocks, damping)

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return sum(front.lower.nbytes + front.below.nbytes for front in self._fronts.values())

    def _assembled(
        self, kind: Kind, left: dict[Kind, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Blocks of a kind's matrix: own by own, border by own, border by border."""
        front, c = self._fronts[kind], self.shape.channels
        own, border = len(front.own), len(front.border)
        where = np.full((kind.down.high, kind.across.high), -1)
        where[tuple(front.own.T)] = np.arange(own)
        where[tuple(front.border.T)] = np.arange(border) + own
        # Transposed: LAPACK has columns where NumPy has rows.
        sizes = (own, own), (own, border), (border, border)
        corner, side, rest = (np.zeros((a, c, b, c), self.dtype) for a, b in sizes)
        for pixels, values in self._parts(kind, left):
            at = where[tuple(pixels.T)]
            inner, outer = np.flatnonzero(at < own), np.flatnonzero(at >= own)
            blocks = values.reshape(len(at), c, len(at), c)
            for target, a, b in (
                (corner, inner, inner),
                (side, inner, outer),
                (rest, outer, outer),
            ):
                to = at[a][:, None] - own * (a is outer), at[b] - own * (b is outer)
                target[to[0], :, to[1], :] += blocks[a[:, None], :, b, :]
        found = zip((corner, side, rest), sizes, strict=True)
        own_own, border_own, border_border = (m.reshape(a * c, b * c).T for m, (a, b) in found)
        return own_own, border_own, border_border

    def _parts(
        self, kind: Kind, left: dict[Kind, np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pixels (p, 2) and matrix (p·C, p·C) of each half, or of each position."""
        front, c = self._fronts[kind], self.shape.channels
        for half, at in front.halves:
            yield self._fronts[half].border + at, left[half]
        if front.halves:
            return
        axes = [np.arange(side) for side in self.shape.kernel]
        window = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
        low, high = zip(*((s.low, s.high) for s in (kind.down, kind.across)), strict=True)
        for i, j in np.ndindex(kind.down.count, kind.across.count):
            pixels = window + np.multiply((i, j), self.shape.stride)
            seen = ((pixels >= low) & (pixels < high)).all(1)
            columns = np.repeat(seen, c)
            yield pixels[seen], self._products[columns][:, columns]

    def solve(self, rhs: np.ndarray) -> np.ndarray:
        """Return (W^T W + damping·I)^-1 rhs for rhs (n,) or (n, r)."""
        (height, width), c = self.shape.size, self.shape.channels
        # (H·W, C, r): the values of a pixel are neighbours.
        x = rhs.reshape(c, height * width, -1).swapaxes(0, 1).astype(self.dtype)
        (trsm,) = get_blas_funcs(("trsm",), dtype=self.dtype)
        steps = []
        for front in (self._fronts[kind] for kind in self._order):
            if len(front.own):
                own, border = (_numbers(p, front.places, width) for p in (front.own, front.border))
                steps.append((front, own, border))
        for front, own, border in steps:
            y = trsm(1.0, front.lower, _columns(x, own), lower=1, overwrite_b=1)
            _put(x, own, y)
            moved = (front.below @ y).reshape(len(border), c, border.shape[1], x.shape[2])
            for place in range(border.shape[1]):  # two of them may share pixels
                x[border[:, place]] -= moved[:, :, place]
        for front, own, border in reversed(steps):
            y = _columns(x, own) - front.below.T @ _columns(x, border)
            _put(x, own, trsm(1.0, front.lower, y, lower=1, trans_a=1, overwrite_b=1))
        return x.swapaxes(0, 1).reshape(rhs.shape).astype(np.float64)


def _eliminated(
    front: Front, own: np.ndarray, below: np.ndarray, border: np.ndarray, damping: float
) -> np.ndarray:
    """Factor a front's own pixels; the Schur complement in its border."""
    trsm, syrk = get_blas_funcs(("trsm", "syrk"), (own,))
    (potrf,) = get_lapack_funcs(("potrf",), (own,))
    size = np.arange(len(own))
    own[size, size] += damping
    front.lower, front.below = own, below
    if own.size:
        front.lower, failed = potrf(own, lower=1, clean=0, overwrite_a=1)
        if failed:
            raise LinAlgError(f"pivot {failed} of {len(own)} is not positive")
    if below.size:
        options = {"side": 1, "lower": 1, "trans_a": 1, "overwrite_b": 1}
        front.below = trsm(1.0, front.lower, below, **options)
        border = syrk(-1.0, front.below, 1.0, border, lower=1, overwrite_c=1)
        for begin in range(0, len(border), STRIPE):
            end = begin + STRIPE
            block = border[begin:end, begin:end]
            border[begin:end, begin:end] = np.tril(block) + np.tril(block, -1).T
            border[begin:end, end:] = border[end:, begin:end].T
    return border


def _numbers(pixels: np.ndarray, places: list[Place], width: int) -> np.ndarray:
    """Numbers in the image of `pixels` (p, 2) at each place, (p, places)."""
    row = np.array([width, 1])
    return (pixels @ row)[:, None] + np.array(places) @ row


def _columns(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Values of pixels (p, places), (p·C, places·r), in Fortran's order."""
    return np.asfortranarray(
        x[at].swapaxes(1, 2).reshape(len(at) * x.shape[1], at.shape[1] * x.shape[2])
    )


def _put(x: np.ndarray, at: np.ndarray, values: np.ndarray) -> None:
    x[at] = values.reshape(len(at), x.shape[1], at.shape[1], x.shape[2]).swapaxes(1, 2)
