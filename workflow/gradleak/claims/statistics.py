"""Intervals and tests that verdicts rest on."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy import stats

MSE_FLOOR = 1e-30
FAILED_LOG = 300.0
MIN_UNITS = 5


def _interval(
    values: Iterable[float], log: bool, level: float, one_more: bool
) -> tuple[float, float]:
    array = np.asarray(list(values), dtype=float)
    n = array.size
    if n < 2:
        return math.nan, math.nan
    if log:
        array = np.log10(np.maximum(array, MSE_FLOOR))
    spread = math.sqrt(1 + 1 / n) if one_more else math.sqrt(1 / n)
    half = stats.t.ppf((1 + level) / 2, n - 1) * array.std(ddof=1) * spread
    low, high = array.mean() - half, array.mean() + half
    if log:
        with np.errstate(over="ignore", under="ignore"):
            low, high = np.power(10.0, low), np.power(10.0, high)
    return float(low), float(high)


def prediction_interval(
    values: Iterable[float], log: bool, level: float = 0.95
) -> tuple[float, float]:
    """Interval in which one further draw lies with probability `level`.

    It is ``mean ± t·s·sqrt(1 + 1/n)`` with Student's t for n − 1 degrees of freedom.

    Parameters
    ----------
    values
        Finite draws, one per run.
    log
        Work on log10 of the values (floored at 1e-30) and give the interval's powers of ten.
    level
        Coverage, between 0 and 1.

    Returns
    -------
    tuple of float
        Low and high, NaN for fewer than two values.
    """
    return _interval(values, log, level, one_more=True)


def interval_of_mean(
    values: Iterable[float], log: bool, level: float = 0.95
) -> tuple[float, float]:
    """Confidence interval of the mean, ``mean ± t·s/sqrt(n)`` (with `log`, the geometric mean).

    Parameters and returned values are those of `prediction_interval`.
    """
    return _interval(values, log, level, one_more=False)


def p_below_zero(differences: Iterable[float]) -> float:
    """One-sided p-value that paired differences lie below 0 (Wilcoxon's signed ranks).

    Differences that are all 0 give 1. Fewer than five differences cannot reach 0.05 and give NaN.
    """
    array = np.asarray(list(differences), dtype=float)
    if array.size < MIN_UNITS:
        return math.nan
    if not np.any(array):
        return 1.0
    return float(stats.wilcoxon(array, alternative="less").pvalue)


def p_majority(successes: int, n: int) -> float:
    """One-sided p-value that a unit succeeds more often than not (sign test)."""
    if n < MIN_UNITS:
        return math.nan
    return float(stats.binomtest(successes, n, 0.5, alternative="greater").pvalue)


def spearman(x: np.ndarray, y: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Spearman's correlation and its interval by Fisher's z.

    The standard error of z is ``sqrt((1 + rho²/2)/(n − 3))`` (Bonett and Wright, 2000).
    Infinite values take the last rank. Constant `x` or `y` gives NaN.
    """
    n = len(x)
    if n < 4 or np.ptp(stats.rankdata(x)) == 0 or np.ptp(stats.rankdata(y)) == 0:
        return math.nan, math.nan, math.nan
    rho = float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])
    z = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, rho)))
    half = stats.norm.ppf((1 + level) / 2) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return rho, math.tanh(z - half), math.tanh(z + half)
