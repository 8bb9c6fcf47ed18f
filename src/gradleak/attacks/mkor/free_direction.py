"""Priors on images that fix the direction cross-entropy leaves open with all classes in a batch.

Every row of p − e sums to zero over the classes, so class means are known up to z̄_n + v_n s, with
one s for each feature and the same v for all. Two properties hold for all images: their range
bounds s from both sides, and most neighbouring pixels are similar. Over many images the median of
a difference between neighbours is near 0 even if no image is flat (Weiss 2001 uses it to separate
illumination from scenes), which gives ∇s as a weighted median. Least squares combine both, with
differences weighted by how well the classes agree, values by how narrow their range is.
"""

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]  # values and their deviations
# Ends of the range: at every place some class is black, or white.
ENDS = ("black", "white")
# Smallest deviation, relative to the largest, for the rounding of float32 gradients.
LEAST = 1e-5


def settle(values: np.ndarray, direction: np.ndarray, kind: str) -> np.ndarray:
    """Return s (C, Sy, Sx) such that values + direction·s look like images in [0, 1].

    `values` (N', C, Sy, Sx) have one channel per colour, on a grid of regions, NaN where unknown;
    `direction` is v (N',), not negative; `kind` is ``median``, ``range``, the middle of the
    interval that keeps all classes in the range, or an end of it, ``black`` or ``white``.
    """
    # Classes with a tiny entry in the direction have no information on s.
    part = direction > 1e-3 * direction.max()
    v, known = direction[part, None, None, None], values[part]
    low = np.nanmax((0.0 - known) / v, axis=0)
    high = np.nanmin((1.0 - known) / v, axis=0)
    if kind in ENDS:
        return np.asarray(low if kind == "black" else high)
    middle = 0.5 * (low + high)
    if kind == "range":
        return middle
    # The deviation of a uniform value in its range; noise may have reversed the range.
    spread = np.maximum(np.abs(high - low), LEAST * np.nanmax(np.abs(high - low))) / np.sqrt(12.0)
    down, across = (
        _differences(known, v[:, 0, 0, 0], axis, LEAST * np.nanmax(spread)) for axis in (2, 3)
    )
    out = []
    for lowest, highest, *given in zip(low, high, middle, spread, *down, *across, strict=True):
        found = _fitted(*zip(given[::2], given[1::2], strict=True))
        least, most = np.nanmax(lowest - found), np.nanmin(highest - found)
        # Where every value lies in its range, the extremes of all images fix the constant best.
        out.append(found + (0.5 * (least + most) if least < most else 0.0))
    return np.stack(out)


def _differences(known: np.ndarray, v: np.ndarray, axis: int, least: float) -> Pair:
    """Return ∂s along an axis as the weighted median over classes, and its standard error."""
    each = -np.diff(known, axis=axis) / v[:, None, None, None]
    middle = _weighted_median(each, v)
    # For a normal distribution: deviation 1.48 MAD, standard error of a median 1.25 times a mean's.
    off = 1.48 * 1.25 * _weighted_median(np.abs(each - middle), v)
    count = v.sum() ** 2 / np.square(v).sum()
    return middle, np.maximum(off / np.sqrt(count), least)


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    if np.ptp(weights) <= 1e-6 * weights.max():
        return np.asarray(np.nanmedian(values, axis=0))
    order = np.argsort(values, axis=0)
    below = np.cumsum(weights[order], axis=0)
    middle = np.argmax(below >= 0.5 * weights.sum(), axis=0)[None]
    found: np.ndarray = np.take_along_axis(values, np.take_along_axis(order, middle, 0), 0)[0]
    return found


def _fitted(values: Pair, down: Pair, across: Pair) -> np.ndarray:
    """Fit an image (Sy, Sx) to values and differences with deviations; neighbours fill unknowns."""
    from scipy import sparse
    from scipy.sparse.linalg import splu

    rows, columns = values[0].shape
    place = np.arange(rows * columns).reshape(rows, columns)
    normal = sparse.csr_matrix((place.size, place.size))
    right = np.zeros(place.size)
    pairs = (
        (down, place[1:], place[:-1]),
        (across, place[:, 1:], place[:, :-1]),
        (values, place, None),
    )
    for (middle, deviation), to, start in pairs:
        weight = np.nan_to_num(1.0 / deviation**2).ravel()
        weight[np.isnan(middle).ravel()] = 0.0
        if start is None:
            equations = sparse.identity(place.size, format="csr")
        else:
            # Unknown differences have a small weight, so that nothing is left undetermined.
            weight = np.maximum(weight, 1e-9 * weight.max(initial=1.0))
            each = np.arange(to.size)
            ones = np.ones(to.size)
            equations = sparse.csr_matrix(
                (np.r_[ones, -ones], (np.r_[each, each], np.r_[to.ravel(), start.ravel()])),
                shape=(to.size, place.size),
            )
        normal = normal + equations.T @ sparse.diags(weight) @ equations
        right += equations.T @ (weight * np.nan_to_num(middle).ravel())
    return np.asarray(splu(sparse.csc_matrix(normal)).solve(right)).reshape(rows, columns)
