"""Sums and differences of neighbouring pixels: prior knowledge of images (MKOR section 3.3)."""

import numpy as np
import pandas as pd

from gradleak.data.targets import read
from gradleak.runtime.tidy import Given

COLUMNS = ["targets", "direction", "variance_sum", "variance_difference", "angle", "pairs"]


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each of files ``sets`` of images and direction to a neighbour.

    Variances are of (x + x') / √2 and (x − x') / √2 over all pairs of neighbours of all images;
    `angle` is that of the first eigenvector of their covariance to the axis of x, in degrees.
    """
    rows = []
    for name, path in zip(words["sets"], files["sets"], strict=True):
        targets = read(path)
        images = targets.images.reshape(-1, *targets.images.shape[2:]) / 255.0
        pairs = {"right": (images[..., :-1], images[..., 1:])}
        pairs["below"] = images[..., :-1, :], images[..., 1:, :]
        for direction, (one, other) in pairs.items():
            covariance = np.cov(one.ravel(), other.ravel())
            first = np.linalg.eigh(covariance)[1][:, -1]
            angle = float(np.degrees(np.arctan2(*np.abs(first[::-1]))))
            sums, mixed = covariance.trace() / 2.0, covariance[0, 1]
            rows.append((name, direction, sums + mixed, sums - mixed, angle, one.size))
    return pd.DataFrame(rows, columns=COLUMNS)
