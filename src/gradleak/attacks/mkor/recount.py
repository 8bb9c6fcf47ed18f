"""Image counts of each class under cross-entropy, refined with the reconstructed features.

The last bias has ∂ℓ/∂b = Σ_k (p_k − e_y) / K, so c = K(p̄ − ∂ℓ/∂b) with p̄ the mean probabilities of
the batch. A gray image's p approximates p̄ if images are gray on average; dark digits are not. The
class means give p̄ = Σ_m c_m p(z̄_m) / K; they in turn need c, so both are computed alternately.

If all classes are present, z̄ and thus p̄ depend on the choice of
`gradleak.attacks.mkor.free_direction`. A feature equal in all images decides it: its column of
∂ℓ/∂W is that feature times ∂ℓ/∂b of the first layer.
"""

from collections.abc import Callable

import numpy as np

from gradleak.attacks.base import Arrays
from gradleak.attacks.mkor.class_system import COLUMNS
from gradleak.attacks.mkor.decoupling import UNEVEN
from gradleak.attacks.mkor.head import Head

# Tolerated error of the sum of counts, in images.
NOISY = 1.0
# Maximum number of rounds of means and counts; most settle in two or three.
TURNS = 6
# Tolerance for a feature equal in all images: distance from its column, relative to white's.
SAME = 1e-3


def is_needed(values: np.ndarray, total: int) -> bool:
    """True if a gray image's counts are not whole numbers, for reasons other than noise."""
    # Entries of ∂ℓ/∂b sum to 0, so counts to K, unless noise was added, and then p̄ is unreliable.
    noisy = abs(float(values.sum()) - total) > NOISY
    return not noisy and float(np.abs(values - np.rint(values)).max()) > UNEVEN


def recount(
    first: np.ndarray, entries: np.ndarray, batch: int, way: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return counts c (N,), whole numbers that sum to K, of the round that changes them least.

    `first` (N,) are the initial counts, `entries` (N,) is ∂ℓ/∂b of the last layer, `batch` is K,
    and `way` gives p (N', N) at the means of the classes present from counts (N,).
    """
    counts = best = first
    least = np.inf
    for _ in range(TURNS):
        before = counts
        shares = before[before > 0] / before.sum()
        again = batch * (shares @ way(before) - entries)
        counts = whole(again, batch)
        # They may cycle.
        moved = float(np.abs(again - before).sum())
        best, least = (counts, moved) if moved < least else (best, least)
        if (counts == before).all():
            break
    return best


def whole(values: np.ndarray, total: int) -> np.ndarray:
    """Round numbers of images to whole ones that sum to `total`, by largest remainder."""
    shares = np.maximum(values, 0.0)
    shares *= total / shares.sum()
    found = np.floor(shares)
    found[np.argsort(found - shares, kind="stable")[: total - int(found.sum())]] += 1.0
    return found.astype(int)


def constants(
    head: Head, gradients: Arrays, references: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return indices and values of the features equal in all images; `references` are (3, n)."""
    bias = gradients.get(f"{head.first.name}.bias")
    if bias is None or not bias.any():
        return np.empty(0, int), np.empty(0)
    rows, bias = gradients[f"{head.first.name}.weight"], bias.astype(np.float64)
    values, off = np.empty(rows.shape[1]), np.empty(rows.shape[1])
    for first in range(0, rows.shape[1], COLUMNS):
        part = slice(first, first + COLUMNS)
        columns = rows[:, part].astype(np.float64)
        values[part] = bias @ columns / (bias @ bias)
        off[part] = np.linalg.norm(columns - np.outer(bias, values[part]), axis=0)
    span = np.abs(references[2] - references[0])
    places = np.flatnonzero(off < SAME * span * np.linalg.norm(bias))
    return places, values[places]
