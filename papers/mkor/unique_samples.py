"""Expected number of samples that are alone in their class (MKOR eq. 3), and its simulation."""

import numpy as np
import pandas as pd

from gradleak.runtime.tidy import Given

COLUMNS = ["images", "classes", "expected", "simulated", "low", "high"]
DRAWS = 20_000
# Images and classes in batches of the paper: MNIST, CIFAR-100 with fewer classes, ImageNet.
BATCHES = (*((100, classes) for classes in (1, 10, 25, 50, 75, 100)), (1000, 1000))


def expected(images: int, probabilities: np.ndarray) -> float:
    """K Σ_n p_n (1 − p_n)^(K − 1), MKOR eq. (3): K = `images`, p_n (N,) = `probabilities`."""
    return float(images * np.sum(probabilities * (1.0 - probabilities) ** (images - 1)))


def simulated(images: int, classes: int, draws: int) -> tuple[float, float, float]:
    """Mean number of samples alone in their class, and its 95 % interval, over random batches."""
    rng = np.random.default_rng((images, classes))
    batches = (rng.integers(0, classes, images) for _ in range(draws))
    found = np.array([np.count_nonzero(np.bincount(labels) == 1) for labels in batches])
    mean, half = found.mean(), 1.96 * found.std(ddof=1) / np.sqrt(draws)
    return float(mean), float(mean - half), float(mean + half)


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Table of Eq. (3) and its simulation; it needs no files."""
    rows = []
    for images, classes in BATCHES:
        eq3 = expected(images, np.full(classes, 1.0 / classes))
        draws = DRAWS if images < 1000 else DRAWS // 10
        rows.append((images, classes, eq3, *simulated(images, classes, draws)))
    return pd.DataFrame(rows, columns=COLUMNS)
