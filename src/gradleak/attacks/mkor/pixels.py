"""From regions to pixels: bounds, their middle, means, and least squares (MKOR eq. 14 to 19)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradleak.errors import NumericsError
from gradleak.servers.plan import Plan

# Weight of the squared differences of neighbours against that of an equation.
SMOOTHNESS = 1e-4
# Deviation in pixels of the filter of the authors' code: nearly a mean over so few pixels.
FILTER_SIGMA = 10.0


@dataclass(frozen=True)
class Regions:
    """Describers on a grid: entry i of an axis describes pixels starts[i] + [0, side)."""

    # (B, C, Sy, Sx): maximum and minimum of each region, the same array where regions have one
    # value (means, or single pixels); NaN where unknown.
    upper: np.ndarray
    lower: np.ndarray
    starts: tuple[np.ndarray, np.ndarray]  # first pixel of each entry, along y and x
    side: int  # side of a region in pixels


class Layout:
    """Where the features on a `grid` (H, W) lie among the regions of an image with `colours`."""

    def __init__(self, plan: Plan, grid: tuple[int, int], colours: int) -> None:
        places = [
            plan.first[:, axis, None] + plan.stride * np.arange(count)
            for axis, count in enumerate(grid)
        ]
        self.starts = np.unique(places[0]), np.unique(places[1])
        rows, columns = (np.searchsorted(s, p) for s, p in zip(self.starts, places, strict=True))
        self._index = plan.colour[:, None, None], rows[:, :, None], columns[:, None, :]
        self._shape = (colours, len(self.starts[0]), len(self.starts[1]))
        self._side = plan.side
        # Maxima (or means), and minima if there are any.
        self._groups = [plan.sign > 0, plan.sign < 0] if (plan.sign < 0).any() else [plan.sign > 0]

    def _at(self, group: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(part[group] for part in self._index)

    def grids(self, values: np.ndarray) -> list[np.ndarray]:
        """Grids (B, C, Sy, Sx) of values (B, channels, H, W): maxima or means, then any minima.

        NaN where no region begins.
        """
        out = []
        for group in self._groups:
            grid = np.full((len(values), *self._shape), np.nan)
            colour, row, column = self._at(group)
            grid[:, colour, row, column] = values[:, group]
            out.append(grid)
        return out

    def channels(self, grids: list[np.ndarray]) -> np.ndarray:
        """Inverse of `grids`: values (channels, H, W) of grids (C, Sy, Sx)."""
        first = self._at(self._groups[0])
        out = np.empty((len(self._groups[0]), *first[1].shape[1:2], *first[2].shape[2:]))
        for group, grid in zip(self._groups, grids, strict=True):
            out[group] = grid[self._at(group)]
        return out

    def regions(self, values: np.ndarray) -> Regions:
        """Sort describers (B, channels, H, W) by where their regions begin (eq. 14 to 16)."""
        grids = self.grids(values)
        return Regions(grids[0], grids[-1], self.starts, self._side)


def estimate(
    found: Regions, size: tuple[int, int], kind: str, native: int | None = None, empty: float = 0.0
) -> np.ndarray:
    """Estimate images (B, C, H, W) of (H, W) = `size` from regions.

    ``bounds``: the middle of the least maximum and the largest minimum of all regions that contain
    a pixel (eq. 17 to 19). ``direct``: the mean of the region centred on it, as in section 3.6 and
    the authors' code, or `empty`, black in the authors' code. ``average``: the mean of all that
    contain it (ours). ``least_squares``: the smoothest image whose regions have these means (ours).

    `native` is the side of the images before they were enlarged by repeating pixels, if the
    attacker knows it; each such block is then one unknown. Raises `NumericsError` if no region has
    a known value.
    """
    if np.isnan(found.upper).all() or np.isnan(found.lower).all():
        raise NumericsError(
            "No feature that carries the image differs between black and white, so no pixel can be "
            "told; the server has to send other weights."
        )
    if kind == "least_squares":
        return _least_squares(found, size).astype(np.float32)
    if kind == "direct":
        return _direct(found, size, empty)
    axes = [
        Axis(starts, found.side, length, native or length)
        for starts, length in zip(found.starts, size, strict=True)
    ]
    if kind == "average":
        return _expanded(_reduced(found.upper, axes, _mean), axes)
    upper = _reduced(found.upper, axes, np.fmin.reduce)
    lower = _reduced(found.lower, axes, np.fmax.reduce)
    return _expanded(0.5 * (upper + lower), axes)


def smoothed(images: np.ndarray, side: int) -> np.ndarray:
    """Smooth images (B, C, H, W) by a Gaussian filter of side x side pixels, `side` odd.

    y_ij = Σ_uv w_uv x_{i+u, j+v} with w_uv ∝ exp(−(u² + v²) / (2σ²)), Σ w = 1, |u|, |v| ≤
    (side − 1)/2 and σ = 10 pixels; edges repeat the last pixels. To be applied before clipping.

    MKOR's authors' code has this filter behind VGG-16 (side 5); the paper does not mention it.
    """
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(
        images, FILTER_SIGMA, radius=side // 2, mode="nearest", axes=(2, 3)
    ).astype(images.dtype)


def _direct(found: Regions, size: tuple[int, int], empty: float) -> np.ndarray:
    """Images whose pixels are the regions centred on them; for an even side the later."""
    values = np.where(np.isnan(found.upper), empty, found.upper)
    out = np.full((*values.shape[:2], *size), empty, np.float32)
    middles = [starts + found.side // 2 for starts in found.starts]
    inside = [(at >= 0) & (at < length) for at, length in zip(middles, size, strict=True)]
    rows, columns = (middle[keep] for middle, keep in zip(middles, inside, strict=True))
    out[:, :, rows[:, None], columns] = values[:, :, inside[0]][:, :, :, inside[1]]
    return out


class Axis:
    """One axis of an image, of `length` pixels: which regions meet which block of pixels.

    Neighbouring blocks that the same regions meet form a cell, so that each is reduced once.
    Regions have first pixels `starts` and `side` pixels. The `count` blocks are equal: one per
    pixel, or one per original pixel before enlargement.
    """

    def __init__(self, starts: np.ndarray, side: int, length: int, count: int) -> None:
        self.step = length // count
        begin = np.arange(count)[:, None] * self.step
        meets = (starts < begin + self.step) & (starts + side > begin)
        new = np.r_[True, (meets[1:] != meets[:-1]).any(axis=1)]
        self.cell = np.cumsum(new) - 1
        self.entries = [np.flatnonzero(row) for row in meets[new]]
        self.count = count

    def spread(self, known: np.ndarray) -> np.ndarray:
        """Matrix (pixels, cells): each pixel's cell, or linear between `known` ones.

        Beyond the last known one, pixels repeat it.
        """
        blocks = np.arange(self.count)
        there = blocks[known[self.cell]]
        place = np.interp(blocks, there, np.arange(len(there)))
        low = np.floor(place).astype(int)
        high = np.minimum(low + 1, len(there) - 1)
        out = np.zeros((self.count, len(self.entries)))
        out[blocks, self.cell[there[low]]] += 1.0 - (place - low)
        out[blocks, self.cell[there[high]]] += place - low
        return out.repeat(self.step, axis=0)


def _reduced(values: np.ndarray, axes: list[Axis], reduce: Callable[..., np.ndarray]) -> np.ndarray:
    """Reduce values (B, C, Sy, Sx) of regions to values (B, C, Y, X) of cells."""
    for axis, line in zip((2, 3), axes, strict=True):
        moved = np.moveaxis(values, axis, 0)
        out = np.full((len(line.entries), *moved.shape[1:]), np.nan)
        for place, entries in enumerate(line.entries):
            if len(entries):
                out[place] = reduce(moved[entries[0] : entries[-1] + 1], axis=0)
        values = np.ascontiguousarray(np.moveaxis(out, 0, axis))
    return values


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=axis)
    count = known.sum(axis=axis)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _expanded(cells: np.ndarray, axes: list[Axis]) -> np.ndarray:
    """Expand values of cells to images (B, C, H, W), float32."""
    unknown = np.isnan(cells).all(axis=(0, 1))
    known = ~unknown.all(axis=1), ~unknown.all(axis=0)
    down, across = (line.spread(there) for line, there in zip(axes, known, strict=True))
    # Whole rows and columns are interpolated; single pruned cells have neighbours.
    values = _nearest(cells)
    out = np.empty((*cells.shape[:2], len(down), len(across)), np.float32)
    for number, image in enumerate(values):
        out[number] = down @ image @ across.T
    return out


def _least_squares(found: Regions, size: tuple[int, int]) -> np.ndarray:
    """Solve F = A_y X A_xᵀ for X, smooth along each axis; A takes the means of regions."""
    known = ~np.isnan(found.upper).all(axis=(0, 1, 3)), ~np.isnan(found.upper).all(axis=(0, 1, 2))
    values = _nearest(found.upper[:, :, known[0]][:, :, :, known[1]])
    left, right = (
        _smooth_inverse(starts[rows], found.side, length)
        for starts, rows, length in zip(found.starts, known, size, strict=True)
    )
    return np.einsum("ya,bcad,xd->bcyx", left, values, right, optimize=True)


def _nearest(values: np.ndarray) -> np.ndarray:
    """Fill gaps of values (B, C, Sy, Sx) with the nearest known one."""
    unknown = np.isnan(values).any(axis=(0, 1))
    if not unknown.any():
        return values
    from scipy.ndimage import distance_transform_edt

    place = distance_transform_edt(unknown, return_distances=False, return_indices=True)
    return values[:, :, place[0], place[1]]


def _smooth_inverse(starts: np.ndarray, side: int, length: int) -> np.ndarray:
    """Return (AᵀA + λDᵀD)⁻¹Aᵀ (length, S), with D the differences of neighbouring pixels."""
    pixels = np.arange(length)
    inside = (pixels >= starts[:, None]) & (pixels < starts[:, None] + side)
    mean = inside / inside.sum(axis=1, keepdims=True)
    differences = np.diff(np.eye(length), axis=0)
    normal = mean.T @ mean + SMOOTHNESS * differences.T @ differences
    return np.linalg.solve(normal, mean.T)
