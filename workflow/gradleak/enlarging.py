"""Images brought to another size: cropped, each pixel repeated, or linear between pixels.

Target sets and trainings share this, so that a network is trained on the pixels it is attacked on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradleak.errors import DataError

WHOLE = slice(None)


class Fit(NamedTuple):
    """What makes images of another size of stored ones.

    Attributes
    ----------
    rows, columns
        Part of a stored image that is kept.
    repeat
        How often each pixel is repeated along both axes.
    side
        Side to which they are enlarged, linearly between pixels; None if they are not.
    """

    rows: slice = WHOLE
    columns: slice = WHOLE
    repeat: int = 1
    side: int | None = None


AS_IT_IS = Fit()


def fit(grid: tuple[int, int], size: int | None, how: str, where: str) -> Fit:
    """How images of `grid` (H, W) become images of (size, size).

    Larger ones are cropped at the centre.

    Parameters
    ----------
    grid, size
        Sizes before and after; they stay as they are where `size` is None.
    how
        ``repeat`` or ``bilinear``.
    where
        Section of config.yaml, for the error.

    Raises
    ------
    DataError
        If images cannot be enlarged so.
    """
    height, width = grid
    if size is None:
        return AS_IT_IS
    if min(grid) >= size:
        top, left = (height - size) // 2, (width - size) // 2
        return Fit(slice(top, top + size), slice(left, left + size))
    if how == "bilinear" and height == width:
        return Fit(side=size)
    if height != width or size % height:
        raise DataError(
            f"{where}: images of {height}x{width} cannot be enlarged to size: {size} by repeating "
            f"each pixel; choose a multiple of {height}, or resize: bilinear for square images."
        )
    return Fit(repeat=size // height)


class Taps(NamedTuple):
    """Two pixels of a line between which each new one lies.

    Attributes
    ----------
    first, second
        Their places, int64 (S,).
    share
        Of the second, float64 (S,); the first has the rest.
    """

    first: np.ndarray
    second: np.ndarray
    share: np.ndarray


def taps(side: int, size: int) -> Taps:
    """Places of `size` pixels in a line of `side`; both lines begin and end alike.

    Pixel k of the new line has its centre at (k + 1/2)·side/size − 1/2 of the old one. Beyond the
    last centres a pixel is that at the edge.
    """
    place = (np.arange(size) + 0.5) * (side / size) - 0.5
    below = np.floor(place)
    first = below.astype(np.int64)
    near, far = (np.clip(near, 0, side - 1) for near in (first, first + 1))
    return Taps(near, far, place - below)


def bilinear(images: np.ndarray, size: int) -> np.ndarray:
    """Square images (n, C, H, H), uint8, enlarged to (n, C, S, S) and rounded.

    Sums are taken in the order of SciPy's and scikit-image's, so that halves are rounded alike.
    """
    first, second, share = taps(images.shape[-1], size)
    out = np.empty((*images.shape[:2], size, size), np.uint8)
    for image, found in zip(images, out, strict=True):
        above = image[:, first] * (1.0 - share)[:, None]
        below = image[:, second] * share[:, None]
        total = above[:, :, first] * (1.0 - share)
        total += above[:, :, second] * share
        total += below[:, :, first] * (1.0 - share)
        total += below[:, :, second] * share
        np.rint(total, out=total)
        found[:] = total
    return out
