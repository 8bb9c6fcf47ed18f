"""Rank of a convolution's layer system from its sizes alone (COPA, eq. 4 and 8).

U = [W; K] stacks the weight constraint (eq. 1a) and the gradient constraint (eq. 1b). Its rank is
at most :func:`rank_bound` for every weight and every gradient, and equal to it for almost every
pair (all but a set of measure zero) where :func:`exact_domain` names a domain. Proofs:
``docs/rank.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from gradleak.errors import ConfigError

Pair = tuple[int, int]

SINGLE_FILTER = "single filter"
ROW_LIMITED = "row-limited"
PATCHES = "solved patch by patch"
CHAINS = "solved in chains"


@dataclass(frozen=True)
class Axis:
    """One image axis of a convolution.

    Attributes
    ----------
    size, kernel, stride, padding
        Pixels, kernel side, stride, and zero padding on each side.
    """

    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def positions(self) -> int:
        """Output positions."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @cached_property
    def _pixel(self) -> npt.NDArray[np.intp]:
        starts = np.arange(self.positions) * self.stride - self.padding
        return np.add.outer(starts, np.arange(self.kernel))

    @cached_property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Whether offset k meets a pixel, not padding, at position p; (positions, kernel)."""
        return (self._pixel >= 0) & (self._pixel < self.size)

    @cached_property
    def windows(self) -> npt.NDArray[np.float64]:
        """1 where a position's window holds a pixel; (positions, size)."""
        return self._incidence(0, self.positions)

    @cached_property
    def reach(self) -> npt.NDArray[np.float64]:
        """1 where an offset meets a pixel at some position; (kernel, size)."""
        return self._incidence(1, self.kernel)

    def _incidence(self, axis: int, rows: int) -> npt.NDArray[np.float64]:
        # float64: exact for counts, and its products are much faster than those of integers
        found = np.zeros((rows, self.size))
        where = np.nonzero(self.valid)
        found[where[axis], self._pixel[where]] = 1
        return found

    @cached_property
    def phases(self) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Covered pixels of each phase, and at how many positions each of its offsets meets one.

        Offsets of different phases never meet the same pixel. With a single position every
        offset is a phase of its own.
        """
        step = self.kernel if self.positions == 1 else min(self.stride, self.kernel)
        uses = self.valid.sum(axis=0)
        groups = [np.arange(first, self.kernel, step) for first in range(step)]
        return [(int(self.reach[group].any(axis=0).sum()), uses[group]) for group in groups]

    @cached_property
    def full_blocks(self) -> list[Pair]:
        """Sizes (positions, offsets) of two blocks of ``valid`` without padding in them."""
        met = self.valid[self.valid.any(axis=1)][:, self.valid.any(axis=0)]
        rows, columns = met.shape
        return [(int(met.all(axis=1).sum()), columns), (rows, int(met.all(axis=0).sum()))]


@dataclass(frozen=True)
class ConvShape:
    """Sizes of a convolutional layer without dilation or groups.

    Attributes
    ----------
    channels, filters
        Input channels C and output channels O.
    kernel, stride, padding, size
        Kernel sides, strides, zero padding on each side and input sides, each (height, width).

    Raises
    ------
    ConfigError
        If a size is not a positive whole number or the kernel exceeds the padded input.
    """

    channels: int
    filters: int
    kernel: Pair
    stride: Pair
    padding: Pair
    size: Pair

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "padding" else 1
            if field.name not in ("channels", "filters") and len(value) != 2:
                raise ConfigError(f"convolution: {field.name} is {value!r}; give two whole numbers")
            for entry in value if isinstance(value, tuple | list) else (value,):
                if isinstance(entry, bool) or not isinstance(entry, int) or entry < least:
                    raise ConfigError(
                        f"convolution: {field.name} is {value!r}; use whole numbers from {least} up"
                    )
        for side, kernel, padding in zip(self.size, self.kernel, self.padding, strict=True):
            if kernel > side + 2 * padding:
                raise ConfigError(
                    f"convolution: kernel {kernel} does not fit an input of {side} with padding "
                    f"{padding}; use a smaller kernel or a larger input"
                )

    @cached_property
    def axes(self) -> tuple[Axis, Axis]:
        """Height and width."""
        height, width = (
            Axis(*sizes)
            for sizes in zip(self.size, self.kernel, self.stride, self.padding, strict=True)
        )
        return height, width

    @property
    def output(self) -> Pair:
        """Sides (Ph, Pw) of the output."""
        return self.axes[0].positions, self.axes[1].positions

    @property
    def positions(self) -> int:
        """Output positions P of one filter."""
        return self.axes[0].positions * self.axes[1].positions

    @property
    def unknowns(self) -> int:
        """Pixels n of the input, padding not counted."""
        return self.channels * self.size[0] * self.size[1]

    @property
    def covered(self) -> int:
        """Pixels that some window holds."""
        rows, columns = (int(axis.windows.any(axis=0).sum()) for axis in self.axes)
        return self.channels * rows * columns

    @property
    def rows(self) -> int:
        """Rows of U: |z| + |W|."""
        return self.filters * (self.positions + self.channels * self.kernel[0] * self.kernel[1])

    @cached_property
    def phase_channels(self) -> list[Pair]:
        """Kernel sides of each channel once the stride is folded into channels."""
        sides = [[len(uses) for _, uses in axis.phases] for axis in self.axes]
        pairs = [(down, across) for down in sides[0] for across in sides[1]]
        return sorted(pairs * self.channels, key=lambda side: side[0] * side[1])


@dataclass(frozen=True)
class StructuralRank:
    """What the sizes say about rank U.

    Attributes
    ----------
    bound
        Upper bound for every weight and gradient.
    domain
        Why the bound is the rank for almost every weight and gradient, or None if nothing here
        proves that.
    """

    bound: int
    domain: str | None

    @property
    def exact(self) -> bool:
        """Whether the bound is the rank for almost every weight and gradient."""
        return self.domain is not None


def structural_rank(shape: ConvShape) -> StructuralRank:
    """Return the bound on rank U and the domain of equality that the layer lies in.

    Parameters
    ----------
    shape
        Sizes of the layer.

    Returns
    -------
    StructuralRank
        Both parts hold whatever the scale of weights and gradients; the equality, for almost
        all of them.
    """
    return StructuralRank(rank_bound(shape), exact_domain(shape))


def rank_bound(shape: ConvShape) -> int:
    """Return an upper bound on rank U for every weight w and every gradient delta.

    ``min(covered, C sum_f min(n_f, sum_k min(O, |P_k|)) + sum_p min(O, C |K_p|) - d)``: the first
    sum bounds the rank of K phase by phase, the second that of W, and d counts independent
    combinations of rows of W that are also combinations of rows of K. P_k are the positions where
    offset k meets a pixel, K_p the offsets that do at position p, n_f the covered pixels of phase
    f.

    Parameters
    ----------
    shape
        Sizes of the layer.

    Returns
    -------
    int
        The bound, at most the number of covered pixels.
    """
    filters, channels = shape.filters, shape.channels
    height, width = shape.axes
    gradient = 0
    for (rows, uses_h), (columns, uses_w) in product(height.phases, width.phases):
        limited = np.minimum(filters, np.outer(uses_h, uses_w)).sum()
        gradient += min(rows * columns, int(limited))
    patch = channels * np.outer(height.valid.sum(axis=1), width.valid.sum(axis=1))
    weight = int(np.minimum(filters, patch).sum())
    shared = max(
        min(filters, p_h * p_w) * min(filters, channels * k_h * k_w)
        for (p_h, k_h), (p_w, k_w) in product(height.full_blocks, width.full_blocks)
    )
    return min(shape.covered, channels * gradient + weight - shared)


def exact_domain(shape: ConvShape) -> str | None:
    """Return the domain in which rank U equals the bound, or None.

    On a domain, rank U = :func:`rank_bound` for all (w, delta) outside a set of measure zero,
    whatever their scale. None says only that no proof covers the layer: the equality often holds.

    Parameters
    ----------
    shape
        Sizes of the layer.

    Returns
    -------
    str or None
        One of ``PATCHES``, ``CHAINS``, ``SINGLE_FILTER`` and ``ROW_LIMITED``.
    """
    height, width = shape.axes
    unknown = np.outer(height.windows.any(axis=0), width.windows.any(axis=0)).astype(float)
    if _peels(shape, unknown, by_offset=True):
        return PATCHES
    inner, pixels = _without_padding(shape)
    if inner is not None and _has_chains(inner):
        unknown[pixels] = 0
        if _peels(shape, unknown, by_offset=False):
            return CHAINS
    if any(shape.padding):
        return None
    if shape.filters == 1:
        return SINGLE_FILTER
    return ROW_LIMITED if _is_row_limited(shape) else None


def _peels(shape: ConvShape, unknown: npt.NDArray[np.float64], by_offset: bool) -> bool:
    """Whether solving patches, and offsets, with at most O unknowns each leaves none.

    ``unknown`` (height, width) is 1 at the covered pixels to find, in every channel.
    """
    height, width = shape.axes
    unknown = unknown.copy()
    while left := int(unknown.sum()):
        in_patch = shape.channels * (height.windows @ unknown @ width.windows.T)
        solved = (in_patch <= shape.filters).astype(float)
        unknown[(height.windows.T @ solved @ width.windows) > 0] = 0
        if by_offset:
            met = height.reach @ unknown @ width.reach.T
            solved = (met <= shape.filters).astype(float)
            unknown[(height.reach.T @ solved @ width.reach) > 0] = 0
        if int(unknown.sum()) == left:
            return False
    return True


def _without_padding(shape: ConvShape) -> tuple[ConvShape | None, tuple[slice, slice]]:
    """Return the layer made of the windows without padding, and the pixels these cover."""
    sizes, pixels = [], []
    for axis in shape.axes:
        inside = int(axis.valid.all(axis=1).sum())
        start = -axis.padding % axis.stride
        sizes.append((inside - 1) * axis.stride + axis.kernel)
        pixels.append(slice(start, start + sizes[-1]))
        if not inside:
            return None, (slice(0), slice(0))
    inner = replace(shape, padding=(0, 0), size=(sizes[0], sizes[1]))
    return inner, (pixels[0], pixels[1])


def _is_row_limited(shape: ConvShape) -> bool:
    """Whether the O^2 combinations shared by W and K are the only dependencies of the rows."""
    sides = shape.phase_channels
    large = [side for side in sides if side != (1, 1)]
    needed = max(0, shape.filters - (len(sides) - len(large)))
    if needed > len(large):
        return False
    outs = [axis.positions for axis in shape.axes]
    if 2 * needed <= len(large):
        pairs = list(zip(large[0 : 2 * needed : 2], large[1 : 2 * needed : 2], strict=True))
        gaps = [max([s[i] for s in sides] + [a[i] + b[i] - 1 for a, b in pairs]) for i in (0, 1)]
        return shape.filters <= -(-outs[0] // gaps[0]) * -(-outs[1] // gaps[1])
    used = large[-needed:]
    places = 1
    for i, out in enumerate(outs):
        gap = max([s[i] for s in sides] + [2 * s[i] - 1 for s in used])
        if all(s[1 - i] > 1 for s in used):
            places += -(-out // gap) - 1
    return shape.filters <= places


def _has_chains(shape: ConvShape) -> bool:
    """Whether filters in chains, and gradients in two corners, give all covered pixels."""
    sides = shape.phase_channels
    count = shape.filters - len(sides)
    if count < 1:
        return False
    step = tuple(min(side[axis] for side in sides) for axis in (0, 1))
    corners: tuple[set[Pair], set[Pair]] = (set(), set())
    for chain in (sides[first::count] for first in range(count)):
        extra = [(side[0] - 1, side[1] - 1) for side in chain]
        for axis, out in enumerate(shape.axes):
            if sum(e[axis] for e in extra) > out.positions:
                return False
        for i, side in enumerate(chain):
            for corner, (down, across) in zip(corners, ((0, 1), (1, 0)), strict=True):
                before = sum(e[down] for e in extra[:i])
                after = sum(e[across] for e in extra[i:])
                corner |= set(
                    product(
                        range(_boxes_before(before, extra[i][down], step[down])),
                        range(_boxes_after(after, side[across], step[across])),
                    )
                )
    return len(corners[0]) + len(corners[1]) <= shape.filters


def _boxes_before(before: int, extra: int, step: int) -> int:
    """Boxes, a step apart, over the last ``before`` positions and ``extra`` pixels after them."""
    if before == 0:
        return int(extra > 0)
    return 1 - (1 - before) // step


def _boxes_after(length: int, side: int, step: int) -> int:
    """Boxes of a side, a step apart, over the first ``length`` pixels."""
    if length == 0:
        return 0
    return 1 + max(0, -((side - length) // step))
