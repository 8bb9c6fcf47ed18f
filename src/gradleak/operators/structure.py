"""Rank of a convolution's layer system from sizes alone (COPA, eq. 4 and 8).

U = [W; K] stacks the weight constraint (eq. 1a) and the gradient constraint (eq. 1b). Its rank is
at most :func:`rank_bound` for every weight and every gradient, and equal to it for almost every
pair (all but a set of measure zero) where :func:`exact_domain` names a domain. The layers behind
limit what gradients there are, see :class:`gradleak.operators.behind.Behind`. Proofs:
``docs/rank.md``.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from gradleak.operators.behind import Behind
from gradleak.operators.shape import ConvShape, Gradient, Pair, Seen

SINGLE_FILTER = "single filter"
ROW_LIMITED = "row-limited"
PATCHES = "solved patch by patch"
CHAINS = "solved in chains"


@dataclass(frozen=True)
class StructuralRank:
    """Information on rank U from sizes alone."""

    bound: int  # upper bound for every weight and gradient
    # Why the bound is the rank for almost every weight and gradient, None if not proved.
    domain: str | None
    # True if the layers behind allow every dJ/dZ that the proof of `domain` needs.
    attained: bool = True

    @property
    def exact(self) -> bool:
        """True if the bound is the rank for almost every possible weight and gradient."""
        return self.domain is not None and self.attained


def structural_rank(shape: ConvShape, behind: Behind | None = None) -> StructuralRank:
    """Return the bound on rank U and the domain of equality that the layer lies in.

    Both hold whatever the scale of weights and gradients; the equality, for almost all of them.
    `behind` are the following layers; None for a dJ/dZ that can be anything.
    """
    if behind is None:
        return StructuralRank(rank_bound(shape), exact_domain(shape))
    seen = behind.seen(shape)
    bound, domain = rank_bound(shape, seen), exact_domain(shape, seen, behind.filters(shape))
    box = _product_box(shape)
    if domain is None and box is not None and behind.are_independent(shape, box):
        domain = ROW_LIMITED
    if domain is not None:
        return StructuralRank(bound, domain)
    # Not proved for these layers behind, but one dJ/dZ with this rank would suffice.
    domain = exact_domain(shape, seen)
    if domain is None and bound == rank_bound(shape):
        domain = exact_domain(shape)
    return StructuralRank(bound, domain, attained=False)


def rank_bound(shape: ConvShape, seen: Seen | None = None) -> int:
    """Return an upper bound on rank U for every weight w and every gradient delta.

    ``min(covered, C sum_f min(n_f, sum_k min(O, |P_k|)) + sum_p min(O, C |K_p|) - d)``: the first
    sum bounds the rank of K phase by phase, the second that of W, and d counts independent
    combinations of rows of W that are also combinations of rows of K. P_k are the positions where
    offset k meets a pixel and delta may be nonzero (`seen`, None for everywhere), K_p the offsets
    that meet one at position p, n_f the pixels of phase f.
    """
    filters, channels = shape.filters, shape.channels
    height, width = shape.axes
    down, across = _gradients(shape, seen)
    gradient = 0
    for (rows, uses_h), (columns, uses_w) in product(down.phases, across.phases):
        limited = np.minimum(filters, np.outer(uses_h, uses_w)).sum()
        gradient += min(rows * columns, int(limited))
    patch = channels * np.outer(height.valid.sum(axis=1), width.valid.sum(axis=1))
    weight = int(np.minimum(filters, patch).sum())
    shared = max(
        min(filters, p_h * p_w) * min(filters, channels * k_h * k_w)
        for (p_h, k_h), (p_w, k_w) in product(down.full_blocks, across.full_blocks)
    )
    return min(shape.covered, channels * gradient + weight - shared)


def exact_domain(
    shape: ConvShape, seen: Seen | None = None, filters: int | None = None
) -> str | None:
    """Return the domain in which rank U equals the bound, or None.

    On a domain, rank U = :func:`rank_bound` for all (w, delta) outside a set of measure zero,
    whatever their scale. It is ``PATCHES``, ``CHAINS``, ``SINGLE_FILTER`` or ``ROW_LIMITED``. None
    says only that no proof covers the layer: the equality often holds.

    `seen` are the positions where delta may be nonzero, None for everywhere; `filters` is the
    number of rows of delta that can be unit vectors at any positions seen while the others are 0,
    None for all. With 0 the weights alone must suffice.
    """
    height, width = shape.axes
    free = shape.filters if filters is None else filters
    unknown = np.outer(height.windows.any(axis=0), width.windows.any(axis=0)).astype(float)
    if _peels(shape, unknown, _gradients(shape, seen), free):
        return PATCHES
    if seen is not None and not all(axis.all() for axis in seen):
        return None
    inner, pixels = _without_padding(shape)
    if inner is not None and _has_chains(inner, free):
        unknown[pixels] = 0
        if _peels(shape, unknown):
            return CHAINS
    if any(shape.padding) or free < shape.filters:
        return None
    if shape.filters == 1:
        return SINGLE_FILTER
    return ROW_LIMITED if _is_row_limited(shape) else None


def _gradients(shape: ConvShape, seen: Seen | None) -> tuple[Gradient, Gradient]:
    height, width = shape.axes
    rows, columns = (None, None) if seen is None else seen
    return Gradient(height, rows), Gradient(width, columns)


def _peels(
    shape: ConvShape,
    unknown: npt.NDArray[np.float64],
    gradients: tuple[Gradient, Gradient] | None = None,
    free: int = 0,
) -> bool:
    """True if solving patches of at most O unknowns, and offsets with `free`, leaves none."""
    height, width = shape.axes
    unknown = unknown.copy()
    while left := int(unknown.sum()):
        in_patch = shape.channels * (height.windows @ unknown @ width.windows.T)
        solved = (in_patch <= shape.filters).astype(float)
        unknown[(height.windows.T @ solved @ width.windows) > 0] = 0
        if gradients is not None:
            down, across = gradients
            met = down.reach @ unknown @ across.reach.T
            solved = (met <= free).astype(float)
            unknown[(down.reach.T @ solved @ across.reach) > 0] = 0
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


def _owners(shape: ConvShape) -> tuple[list[Pair], list[Pair], int]:
    """Kernel sides of the folded channels, those beyond 1 x 1, and the filters these need."""
    sides = shape.phase_channels
    large = [side for side in sides if side != (1, 1)]
    return sides, large, max(0, shape.filters - (len(sides) - len(large)))


def _product_box(shape: ConvShape) -> Pair | None:
    """Box of u where independent delta_o t^u prove the row-limited rank.

    None if filters cannot be given two channels each, or one with a 1 x 1 box.
    """
    sides, large, needed = _owners(shape)
    if any(shape.padding) or 2 * needed > len(large):
        return None
    pairs = list(zip(large[0 : 2 * needed : 2], large[1 : 2 * needed : 2], strict=True))
    height, width = (
        max([s[i] for s in sides] + [a[i] + b[i] - 1 for a, b in pairs]) for i in (0, 1)
    )
    return height, width


def _is_row_limited(shape: ConvShape) -> bool:
    """True if the O^2 combinations shared by W and K are the only dependencies of the rows."""
    sides, large, needed = _owners(shape)
    if needed > len(large):
        return False
    outs = [axis.positions for axis in shape.axes]
    gap_of_pairs = _product_box(shape)
    if gap_of_pairs is not None:
        return shape.filters <= -(-outs[0] // gap_of_pairs[0]) * -(-outs[1] // gap_of_pairs[1])
    used = large[-needed:]
    places = 1
    for i, out in enumerate(outs):
        gap = max([s[i] for s in sides] + [2 * s[i] - 1 for s in used])
        if all(s[1 - i] > 1 for s in used):
            places += -(-out // gap) - 1
    return shape.filters <= places


def _has_chains(shape: ConvShape, free: int) -> bool:
    """True if filters in chains, and `free` gradients in two corners, give all covered pixels."""
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
                first = _boxes_before(before, extra[i][down], step[down])
                last = _boxes_after(after, side[across], step[across])
                corner |= set(product(range(first), range(last)))
    return len(corners[0]) + len(corners[1]) <= free


def _boxes_before(before: int, extra: int, step: int) -> int:
    """Count boxes, a step apart, over the last ``before`` positions and ``extra`` pixels after."""
    if before == 0:
        return int(extra > 0)
    return 1 - (1 - before) // step


def _boxes_after(length: int, side: int, step: int) -> int:
    """Count boxes of a side, a step apart, over the first ``length`` pixels."""
    if length == 0:
        return 0
    return 1 + max(0, -((side - length) // step))
