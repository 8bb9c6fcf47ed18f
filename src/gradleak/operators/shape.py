"""Sizes of a convolution, what follows from them alone, and its two image axes."""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gradleak.errors import ConfigError

Pair = tuple[int, int]
# On each axis, true at positions where dJ/dZ may be nonzero.
Seen = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]


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
        """Pixels of each phase, whose offsets meet no other's, and positions of each offset."""
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


@dataclass(frozen=True)
class ConvShape:
    """Sizes of a convolution without dilation or groups; `ConfigError` for sizes that cannot be."""

    channels: int  # input channels C
    filters: int  # output channels O
    # Kernel sides, strides, zero padding on each side and input sides, each (height, width).
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
        sides = zip(self.size, self.kernel, self.stride, self.padding, strict=True)
        height, width = (Axis(*side) for side in sides)
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
        """Number of pixels inside some window."""
        rows, columns = (int(axis.windows.any(axis=0).sum()) for axis in self.axes)
        return self.channels * rows * columns

    @property
    def rows(self) -> int:
        """Rows of U: |z| + |W|."""
        return self.filters * (self.positions + self.channels * self.kernel[0] * self.kernel[1])

    @cached_property
    def phase_channels(self) -> list[Pair]:
        """Kernel sides of each channel once the stride is folded into channels."""
        sides = [[len(uses) for _, uses in Gradient(axis).phases] for axis in self.axes]
        pairs = [(down, across) for down in sides[0] for across in sides[1]]
        return sorted(pairs * self.channels, key=lambda side: side[0] * side[1])


def patch_indices(shape: ConvShape) -> tuple[np.ndarray, np.ndarray]:
    """Pixel of one channel that offset k meets at output position p.

    Returns flat indices (kh * kw, P) into the H x W image, 0 where the offset meets padding, and a
    mask (kh * kw, P), False for padding: a known zero, not an unknown.
    """
    height, width = shape.axes
    rows, cols = height.pixel.T[:, None, :, None], width.pixel.T[None, :, None, :]
    valid = height.valid.T[:, None, :, None] & width.valid.T[None, :, None, :]
    flat = (shape.kernel[0] * shape.kernel[1], shape.positions)
    indices = np.where(valid, rows * width.size + cols, 0)
    return indices.reshape(flat), valid.reshape(flat)
