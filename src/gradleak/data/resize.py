"""Resize images: crop, repeat pixels, or interpolate linearly.

Target sets and training share this, so a network is trained on the pixels it is attacked on.
"""

from typing import NamedTuple

import numpy as np

from gradleak.errors import DataError

WHOLE = slice(None)


class Fit(NamedTuple):
    """Transformation of stored images to another size."""

    rows: slice = WHOLE  # part of a stored image that is kept
    columns: slice = WHOLE  # the same along the other axis
    repeat: int = 1  # repetitions of each pixel along both axes
    side: int | None = None  # side of the bilinear enlargement; None without one


AS_IT_IS = Fit()


def fit(grid: tuple[int, int], size: int | None, how: str, where: str) -> Fit:
    """Transformation of images of `grid` (H, W) to (size, size); larger ones are centre-cropped.

    `size` None keeps the grid; `how` is ``repeat`` or ``bilinear``. `where` is the section of
    config.yaml named by the `DataError` for images that cannot be enlarged in this way.
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


def taps(side: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions of `size` pixels in a line of `side`; both lines begin and end alike.

    The centre of pixel k of the new line is at (k + 1/2)·side/size − 1/2 of the old one. Returned
    are the two old pixels that it lies between, int64 (S,), where pixels beyond the last centres
    repeat the edge, and the weight of the second, float64 (S,); the first has the rest.
    """
    place = (np.arange(size) + 0.5) * (side / size) - 0.5
    below = np.floor(place)
    first = below.astype(np.int64)
    near, far = (np.clip(near, 0, side - 1) for near in (first, first + 1))
    return near, far, place - below


def bilinear(images: np.ndarray, size: int) -> np.ndarray:
    """Enlarge square images (n, C, H, H), uint8, to (n, C, S, S), rounded.

    Sums are taken in the order of SciPy and scikit-image, so that halves are rounded alike.
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
