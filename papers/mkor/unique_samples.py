"""Expected number of samples that are alone in their class (MKOR eq. 3), and its simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

COLUMNS = ["images", "classes", "expected", "simulated", "low", "high"]
DRAWS = 20_000


def expected(images: int, probabilities: np.ndarray) -> float:
    """K Σ_n p_n (1 − p_n)^(K − 1), MKOR eq. (3): K = `images`, p_n (N,) = `probabilities`."""
    return float(images * np.sum(probabilities * (1.0 - probabilities) ** (images - 1)))


def simulated(images: int, classes: int, draws: int = DRAWS) -> tuple[float, float, float]:
    """Mean number of samples alone in their class, and its 95 % interval, over random batches."""
    generator = np.random.default_rng((images, classes))
    found = np.empty(draws)
    for k in range(draws):
        counts = np.bincount(generator.integers(0, classes, images), minlength=classes)
        found[k] = np.count_nonzero(counts == 1)
    mean, half = found.mean(), 1.96 * found.std(ddof=1) / np.sqrt(draws)
    return float(mean), float(mean - half), float(mean + half)


def table() -> list[dict[str, float]]:
    """Rows for the batches of the paper: MNIST, CIFAR-100 with fewer classes, ImageNet."""
    rows = []
    for images, classes in [(100, n) for n in (1, 10, 25, 50, 75, 100)] + [(1000, 1000)]:
        draws = DRAWS if images < 1000 else DRAWS // 10
        mean, low, high = simulated(images, classes, draws)
        rows.append(
            {
                "images": images,
                "classes": classes,
                "expected": expected(images, np.full(classes, 1.0 / classes)),
                "simulated": mean,
                "low": low,
                "high": high,
            }
        )
    return rows


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Table of Eq. (3) and its simulation; it needs no files."""
    return pd.DataFrame(table(), columns=COLUMNS)
