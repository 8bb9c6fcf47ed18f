"""Intervals and tests for verdicts."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy import stats

MSE_FLOOR = 1e-30
FAILED_LOG = 300.0
MIN_UNITS = 5
RESAMPLES = 2000
LEVEL = 0.9  # of intervals beside tests that ask each side at 0.05
# Below it a p-value says more of a distribution's tail than of the data.
P_FLOOR = 1e-16


def prediction_interval(
    values: Iterable[float], log: bool, level: float = 0.95
) -> tuple[float, float]:
    """Interval of one further draw, ``mean ± t·s·sqrt(1 + 1/n)``, Student's t; NaN for n < 2.

    With `log` it is computed on log10 of the values (floored at 1e-30) and returned as powers of
    ten.
    """
    return interval_of_mean(values, log, level, further=1)


def interval_of_mean(
    values: Iterable[float], log: bool, level: float = 0.95, further: int = 0
) -> tuple[float, float]:
    """Confidence interval of the mean, ``mean ± t·s/sqrt(n)`` (with `log`, the geometric mean).

    With `further` = 1 it is `prediction_interval`; parameters and values are as there.
    """
    array = np.asarray(list(values), dtype=float)
    n = array.size
    if n < 2:
        return math.nan, math.nan
    if log:
        array = np.log10(np.maximum(array, MSE_FLOOR))
    half = stats.t.ppf((1 + level) / 2, n - 1) * array.std(ddof=1) * math.sqrt(further + 1 / n)
    low, high = array.mean() - half, array.mean() + half
    if log:
        with np.errstate(over="ignore", under="ignore"):
            low, high = np.power(10.0, low), np.power(10.0, high)
    return float(low), float(high)


def bootstrap_mean(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the arithmetic mean of `values` (one per image).

    For positive skewed errors, where Student's interval would extend below 0.
    """
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def sd_within(values: np.ndarray) -> float:
    """Root of the mean variance over units, of `values` (units, draws); NaN for one unit.

    What differs from one draw of the weights to the next is no spread over units.
    """
    if len(values) < 2:
        return math.nan
    return math.sqrt(values.var(axis=0, ddof=1).mean())


def jackknifed(statistic: Callable[[np.ndarray], float], n: int) -> np.ndarray:
    """Pseudo-values (n,) of a statistic: ``n·θ − (n − 1)·θ₍₋ᵢ₎`` (Tukey; Miller, 1974).

    `statistic` takes the indices of the units that are kept. Its standard error is that of the
    pseudo-values' mean, also for pairs and for skewed values.
    """
    units = np.arange(n)
    without = np.array([statistic(np.delete(units, one)) for one in units])
    return n * statistic(units) - (n - 1) * without


def floored(p: float) -> float:
    """P-value as it is written: at least `P_FLOOR`; NaN stays."""
    return math.nan if math.isnan(p) else max(p, P_FLOOR)


def p_words(p: float) -> str:
    """Words of a p-value for a reason: ``p = 0.031``; at `P_FLOOR` or below, ``p <`` that."""
    return f"p < {P_FLOOR:g}" if p <= P_FLOOR else f"p = {p:.2g}"


def against_words(p: float) -> str:
    """Words of the p-value that the opposite of a sentence holds."""
    return f"{p_words(p)} against the sentence"


def t_above(t: float, freedom: float) -> float:
    """Probability that Student's t lies above `t`; with infinite degrees of freedom, a normal."""
    return float(stats.t.sf(t, freedom))


def t_value(level: float, freedom: float) -> float:
    """Half-width, in standard errors, of an interval with that coverage, as of `t_above`."""
    return float(stats.t.ppf((1 + level) / 2, freedom))


def freedom(parts: Iterable[tuple[float, int]]) -> float:
    """Degrees of freedom of a difference of means, by Welch and Satterthwaite.

    `parts` are the standard error of each mean and the number of units behind it.
    """
    varied = [(error**2, units) for error, units in parts if error > 0]
    if not varied:
        return math.inf
    total = sum(square for square, _ in varied)
    return total**2 / sum(square**2 / (units - 1) for square, units in varied)


def z_value(level: float) -> float:
    """Half-width, in standard errors, of a normal interval with that coverage."""
    return float(stats.norm.ppf((1 + level) / 2))


def wilson(share: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson interval of a share of n."""
    z = z_value(level)
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return middle - half, middle + half


def p_below_zero(differences: Iterable[float]) -> float:
    """One-sided p-value for paired differences below 0 (Wilcoxon's signed ranks).

    1 if all differences are 0. Fewer than five differences cannot reach 0.05 and give NaN.
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


def spearman(
    x: np.ndarray, y: np.ndarray, level: float = 0.95, seed: int = 0
) -> tuple[float, float, float, float]:
    """Spearman's correlation of `x` and `y` (n,) with its percentile bootstrap interval.

    A failed network is infinite and takes the last rank; ties share their mean rank. Returns rho,
    low, high, and the share of samples that are not below 0 (the p-value of a negative
    correlation; never 0 or 1). NaN for fewer than four values or if one side is constant.
    Bootstrap samples in which one is constant are left out.
    """
    if len(x) < 4 or np.ptp(stats.rankdata(x)) == 0 or np.ptp(stats.rankdata(y)) == 0:
        return math.nan, math.nan, math.nan, math.nan
    drawn = np.random.default_rng(seed).integers(len(x), size=(RESAMPLES, len(x)))
    rho = _row_correlations(x[None], y[None])[0]
    found = _row_correlations(x[drawn], y[drawn])
    low, high = np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2])
    kept = found[~np.isnan(found)]
    share = (np.count_nonzero(kept >= 0) + 1) / (kept.size + 2)
    return float(rho), float(low), float(high), float(share)


def p_mean_below(values: np.ndarray, limit: float) -> float:
    """One-sided p-value for a mean below a limit (Student's t); 0 or 1 if all values are equal."""
    gap, deviation = float(values.mean()) - limit, values.std(ddof=1)
    if deviation == 0:
        return float(gap >= 0)
    return float(stats.t.cdf(gap / (deviation / math.sqrt(values.size)), values.size - 1))


def bonferroni(p_values: Iterable[float]) -> float:
    """P-value that at least one of several holds: their smallest, times their number."""
    found = list(p_values)
    return min(1.0, len(found) * min(found))


def simes(p_values: Sequence[float]) -> float:
    """P-value that at least one of several holds, by Simes: the least of k·p₍ᵢ₎/i; NaN of none.

    Unlike Bonferroni's it gains from several small ones. It is exact for independent tests, and
    conservative for those that depend on each other positively, as tests on the same images do.
    """
    ordered = np.sort(np.asarray(p_values, dtype=float))
    if not ordered.size:
        return math.nan
    return float(min(1.0, (ordered.size * ordered / np.arange(1, ordered.size + 1)).min()))


def adjusted(p_values: np.ndarray) -> np.ndarray:
    """P-values adjusted for their number by Holm's method, in the order given."""
    order = np.argsort(p_values, kind="stable")
    steps = p_values[order] * np.arange(p_values.size, 0, -1)
    out = np.empty_like(steps)
    out[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return out


def _row_correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each row, shapes (rows, n); NaN for constant rows."""
    ranks = [stats.rankdata(values, axis=1) for values in (x, y)]
    one, other = (r - r.mean(axis=1, keepdims=True) for r in ranks)
    size = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    return np.divide((one * other).sum(axis=1), size, out=np.full(len(x), np.nan), where=size > 0)
