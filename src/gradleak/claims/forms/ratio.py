"""Ratios of two sides' means or spreads over runs, such as "nearly three times the MSE"."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pandas as pd

from gradleak.claims import metrics
from gradleak.claims.evidence import Evidence
from gradleak.claims.forms import base
from gradleak.claims.forms.paired import Paired, common_runs, counts
from gradleak.claims.outcome import DIFFERS, NOT_JUDGED, NotJudged, Outcome, failed, tested
from gradleak.claims.statement import Statement, Tolerance, Where
from gradleak.claims.statistics import (
    LEVEL,
    MSE_FLOOR,
    interval_of_mean,
    jackknifed,
    p_mean_below,
    p_words,
    sd_within,
)  # fmt: skip

# Of values with one row for each unit and one column for each draw of the weights.
Statistic = Callable[[np.ndarray], float]
STATISTICS: dict[str, Statistic] = {
    "mean": lambda values: float(values.mean()),
    "sd": sd_within,
}


class Ratio(Paired):
    """A mean, or a standard deviation over units, of `one` divided by that of `other`.

    It is at least the tolerance's amount, or at most that far from the paper's value.
    """

    form: Literal["ratio"]
    of: Literal["mean", "sd"]
    one: Where
    other: Where
    rules = ("absolute", "at_least")

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge the logarithm of the ratio by Student's t with the jackknife's standard error.

        Runs are paired by unit, and a unit is left out on both sides at once. A failed run leaves
        no ratio, and the claim differs.
        """
        one, other = (self._side(evidence, where) for where in (self.one, self.other))
        common = common_runs([one, other])
        n, n_ok = counts([one, other])
        if n_ok < n:
            return Outcome(DIFFERS, failed(n, n_ok), n=n, n_ok=n_ok)
        unit = base.independent(self.unit, common)
        first, second = (_by_unit(side.value[common], unit) for side in (one, other))
        statistic, units = STATISTICS[self.of], len(first)
        if few := base.few(units, unit):
            return Outcome(NOT_JUDGED, few, n=n, n_ok=n_ok)
        logs = _logarithms(statistic, first, second)
        p, p_against = _p_values(logs, np.log10(_limits(claim, tolerance)))
        words = f"{p_words(p)} over {base.counted(unit, units, common.get_level_values('seed'))}"
        ours, (low, high) = 10.0 ** float(logs.mean()), interval(statistic, first, second)
        verdict = tested(p, p_against, tolerance.alpha)
        return Outcome(
            verdict, words, ours, low, high, n, n_ok, p=p, p_against=p_against, units=units
        )

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return self._experiments(self.one, self.other)

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        of = metrics.label(self.metric, self.metric)
        what = f"mean {of}" if self.of == "mean" else f"standard deviation of {of}"
        return f"the first side's {what} over the other's"

    def interval(self, tolerance: Tolerance) -> str:
        """See `Form.interval`."""
        return base.percent(LEVEL)


def _by_unit(values: pd.Series, unit: base.Unit) -> np.ndarray:
    """Values (units, draws); of units that are draws, (units, images)."""
    level, beside = base.UNIT_COLUMN[unit], "index" if unit == "seed" else "seed"
    table = values.groupby(level=[level, beside]).mean().unstack(beside)
    if table.isna().any(axis=None):
        raise NotJudged(f"data: {base.UNITS[unit]} do not all have the same runs")
    return table.to_numpy()


def _limits(claim: Statement, tolerance: Tolerance) -> list[float]:
    """Least ratio that agrees, and the largest if there is one."""
    if tolerance.rule == "at_least":
        return [tolerance.limit]
    return [claim.value - tolerance.limit, claim.value + tolerance.limit]


def _logarithms(statistic: Statistic, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Values (units,) whose mean is the ratio's log10, and their spread its jackknife's."""

    def ratio(kept: np.ndarray) -> float:
        sides = (max(statistic(values[kept]), MSE_FLOOR) for values in (one, other))
        first, second = (math.log10(side) for side in sides)
        return first - second

    units = np.arange(len(one))
    pseudo = jackknifed(ratio, len(one))
    return ratio(units) + pseudo - pseudo.mean()


def interval(statistic: Statistic, one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Interval of the ratio of a statistic of `one` to that of `other`, (units, draws) each."""
    low, high = interval_of_mean(_logarithms(statistic, one, other), log=False, level=LEVEL)
    return 10.0**low, 10.0**high


def _p_values(logs: np.ndarray, limits: np.ndarray) -> tuple[float, float]:
    """P-values that the mean lies beyond the first limit and short of another, and outside."""
    low, *high = limits
    inside = [p_mean_below(-logs, -low), *(p_mean_below(logs, one) for one in high)]
    outside = [p_mean_below(logs, low), *(p_mean_below(-logs, -one) for one in high)]
    return max(inside), min(outside)
