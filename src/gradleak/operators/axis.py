"""One image axis of a convolution: windows, offsets, and the gradient constraint on it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Pair = tuple[int, int]


@dataclass(frozen=True)
class Axis:
    """One image axis of a convolution."""

    size: int  # pixels
    kernel: int  # kernel side
    stride: int  # stride
    padding: int  # zero padding on each side

    @property
    def positions(self) -> int:
        """Output positions."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @cached_property
    def pixel(self) -> npt.NDArray[np.intp]:
        """Pixel that offset k meets at position p, or a padded one; (positions, kernel)."""
        starts = np.arange(self.positions) * self.stride - self.padding
        return np.add.outer(starts, np.arange(self.kernel))

    @cached_property
    def valid(self) -> npt.NDArray[np.bool_]:
        """True where offset k meets a pixel, not padding, at position p; (positions, kernel)."""
        return (self.pixel >= 0) & (self.pixel < self.size)

    @cached_property
    def windows(self) -> npt.NDArray[np.float64]:
        """1 where a position's window holds a pixel; (positions, size)."""
        # float64: exact for counts, and its products are much faster than those of integers
        found = np.zeros((self.positions, self.size))
        position, offset = np.nonzero(self.valid)
        found[position, self.pixel[position, offset]] = 1
        return found

    def reached(self, positions: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """True for pixels in the window of one of the `positions` (positions,); (size,)."""
        return np.asarray(self.windows[positions].any(axis=0))


class Gradient:
    """K₀ on one axis: which offset meets which pixel at positions where dJ/dZ is not 0.

    `valid` (positions, kernel) is true if offset k meets a pixel at position p and dJ/dZ may be
    nonzero there; `reach` (kernel, size) is 1 where an offset meets a pixel at such a position.
    """

    def __init__(self, axis: Axis, seen: npt.NDArray[np.bool_] | None = None) -> None:
        self.valid = axis.valid if seen is None else axis.valid & seen[:, None]
        self.reach = np.zeros((axis.kernel, axis.size))
        position, offset = np.nonzero(self.valid)
        self.reach[offset, position * axis.stride - axis.padding + offset] = 1

    @property
    def phases(self) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Pixels of each phase, and the number of positions at which each of its offsets meets one.

        Offsets of different phases never meet the same pixel.
        """
        from scipy.sparse.csgraph import connected_components

        count, label = connected_components(self.reach @ self.reach.T, directed=False)
        uses = self.valid.sum(axis=0)
        groups = [label == one for one in range(count)]
        return [(int(self.reach[group].any(axis=0).sum()), uses[group]) for group in groups]

    @property
    def full_blocks(self) -> list[Pair]:
        """Sizes (positions, offsets) of two blocks of ``valid`` without padding."""
        met = self.valid[self.valid.any(axis=1)][:, self.valid.any(axis=0)]
        rows, columns = met.shape
        return [(int(met.all(axis=1).sum()), columns), (rows, int(met.all(axis=0).sum()))]
