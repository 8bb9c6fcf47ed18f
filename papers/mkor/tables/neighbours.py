"""Sums and differences of neighbouring pixels: prior knowledge of images (MKOR section 3.3)."""

import numpy as np
import pandas as pd

from gradleak.data.targets import read
from gradleak.runtime.tidy import Given

COLUMNS = ["targets", "direction", "variance_sum", "variance_difference", "angle", "pairs"]
AT_ONCE = 20  # images


def moments(images: np.ndarray, direction: str) -> tuple[np.ndarray, int]:
    """Sums over pairs of neighbours x, x' of x, x', x², x'² and xx' (5,), and number of pairs.

    `images` (n, C, H, W) have values in [0, 1]; `direction` to x' is ``right`` or ``below``.
    """
    ends = {"right": np.s_[..., 1:], "below": np.s_[..., 1:, :]}
    starts = {"right": np.s_[..., :-1], "below": np.s_[..., :-1, :]}
    one, other = images[starts[direction]].ravel(), images[ends[direction]].ravel()
    sums = [one.sum(), other.sum(), one @ one, other @ other, one @ other]
    return np.array(sums), one.size


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each of files ``sets`` of images and direction to a neighbour.

    Variances are of (x + x') / √2 and (x − x') / √2 over all pairs of neighbours, each image
    counted once; `angle` is that of the first eigenvector of their covariance to the axis of x, in
    degrees.
    """
    rows = []
    for name, path in zip(words["sets"], files["sets"], strict=True):
        targets = read(path)
        every = targets.images.reshape(-1, *targets.images.shape[2:])
        images = every[np.unique(targets.indices.ravel(), return_index=True)[1]]
        for direction in ("right", "below"):
            parts = [
                moments(images[first : first + AT_ONCE] / 255.0, direction)
                for first in range(0, len(images), AT_ONCE)
            ]
            pairs = sum(count for _, count in parts)
            x, y, xx, yy, xy = np.sum([sums for sums, _ in parts], axis=0) / pairs
            covariance = np.array([[xx - x * x, xy - x * y], [xy - x * y, yy - y * y]])
            first = np.abs(np.linalg.eigh(covariance)[1][:, -1])
            angle = float(np.degrees(np.arctan2(first[1], first[0])))
            mean, mixed = covariance.trace() / 2.0, covariance[0, 1]
            rows.append((name, direction, mean + mixed, mean - mixed, angle, pairs))
    return pd.DataFrame(rows, columns=COLUMNS)
