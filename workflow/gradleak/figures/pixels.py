"""Images at the size at which a page shows them."""

from __future__ import annotations

import numpy as np

MOST_PIXELS = 224  # of a side, beyond what a page can show


def displayed(image: np.ndarray) -> np.ndarray:
    """The image itself, or a smaller one where it has more pixels than a page can show."""
    return image if image.shape[-1] <= MOST_PIXELS else shrunk(image, MOST_PIXELS)


def shrunk(image: np.ndarray, side: int) -> np.ndarray:
    """Image (C, H, W) at another size (C, side, side): the mean over each new pixel's area."""
    rows, columns = (_areas(count, side) for count in image.shape[1:])
    out: np.ndarray = rows @ image.astype(np.float64) @ columns.T
    return out


def _areas(count: int, side: int) -> np.ndarray:
    """Share (side, count) of each new pixel that each old pixel covers; rows add up to 1."""
    edges = np.arange(side + 1) * (count / side)
    low = np.maximum(edges[:-1, None], np.arange(count))
    high = np.minimum(edges[1:, None], np.arange(1, count + 1))
    out: np.ndarray = np.clip(high - low, 0.0, None) * (side / count)
    return out
