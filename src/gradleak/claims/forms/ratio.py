"""Ratios of two sides' means or spreads over runs, such as "nearly three times the MSE"."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Self

import numpy as np
import pandas as pd
from pydantic import model_validator

from gradleak.claims import metrics
from gradleak.claims.evidence import Evidence
from gradleak.claims.forms import base
from gradleak.claims.forms.paired import Paired, common_runs, counts
from gradleak.claims.outcome import DIFFERS, NOT_JUDGED, NotJudged, Outcome, failed, tested
from gradleak.claims.power import printed_range
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

    It is at least the tolerance's amount, or at most that far from the paper's value with its
    rounding and ±.
    """

    form: Literal["ratio"]
    of: Literal["mean", "sd"]
    one: Where
    other: Where
    rules = ("absolute", "at_least")

    @model_validator(mode="after")
    def _of_errors(self) -> Self:
        if self.metric not in metrics.LOGARITHMIC:
            raise ValueError(
                f"metric '{self.metric}' may be 0 or in dB, of which a ratio says nothing; use one "
                f"of {', '.join(metrics.LOGARITHMIC)}"
            )
        return self

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge the logarithm of the ratio by Student's t with the jackknife's standard error.

        Runs are paired by unit, and a unit is left out on both sides at once. A run that failed, or
        whose error is infinite, leaves no ratio, and the claim differs.
        """
        one, other = (self._side(evidence, where) for where in (self.one, self.other))
        common = common_runs([one, other])
        n, n_ok = counts([one, other])
        if not all(np.isfinite(side.value[common]).all() for side in (one, other)):
            return Outcome(DIFFERS, failed(n, n_ok) or "an error is infinite", n=n, n_ok=n_ok)
        unit = base.independent(self.unit, common)
        first, second = (_by_unit(side.value[common], unit) for side in (one, other))
        statistic, units = STATISTICS[self.of], len(first)
        if units == 1:
            return Outcome(NOT_JUDGED, base.few(units, unit), n=n, n_ok=n_ok)
        logs = logarithms(statistic, first, second)
        ours, (low, high) = 10.0 ** float(logs.mean()), interval(logs)
        made = Outcome(NOT_JUDGED, base.few(units, unit), ours, low, high, n, n_ok, units=units)
        if made.reason:
            return made
        p, p_against = _p_values(logs, np.log10(self._limits(claim, tolerance)))
        words = f"{p_words(p)} over {base.counted(unit, units, common.get_level_values('seed'))}"
        verdict = tested(p, p_against, tolerance.alpha)
        return replace(made, verdict=verdict, reason=words, p=p, p_against=p_against)

    def fault(self, claim: Statement, tolerance: Tolerance) -> str:
        """See `Form.fault`."""
        if tolerance.rule == "absolute" and claim.paper_value is None:
            return "paper_value is missing; give it"
        least = self._limits(claim, tolerance)[0]
        return "" if least > 0 else f"its least ratio is {least:g}, and all are above 0; correct it"

    def _limits(self, claim: Statement, tolerance: Tolerance) -> list[float]:
        """Least ratio that agrees, and the largest if there is one."""
        if tolerance.rule == "at_least":
            return [tolerance.limit]
        low, high = printed_range(claim, self.metric)
        return [low - tolerance.limit, high + tolerance.limit]

    def window(self, claim: Statement, tolerance: Tolerance) -> str:
        """See `Form.window`."""
        return f"{super().window(claim, tolerance)}, p < {tolerance.alpha:g}"

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


def logarithms(statistic: Statistic, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Values (units,) whose mean is the log10 of a ratio, and its standard error the jackknife's.

    `one` and `other` have the values of each unit under each draw of the weights, (units, draws).
    """

    def ratio(kept: np.ndarray) -> float:
        sides = (max(statistic(values[kept]), MSE_FLOOR) for values in (one, other))
        first, second = (math.log10(side) for side in sides)
        return first - second

    units = np.arange(len(one))
    pseudo = jackknifed(ratio, len(one))
    return ratio(units) + pseudo - pseudo.mean()


def interval(logs: np.ndarray) -> tuple[float, float]:
    """Interval of a ratio from its `logarithms`."""
    low, high = interval_of_mean(logs, log=False, level=LEVEL)
    with np.errstate(over="ignore"):
        return float(np.power(10.0, low)), float(np.power(10.0, high))


def _p_values(logs: np.ndarray, limits: np.ndarray) -> tuple[float, float]:
    """P-values that the mean lies beyond the first limit and short of another, and outside."""
    low, *high = limits
    inside = [p_mean_below(-logs, -low), *(p_mean_below(logs, one) for one in high)]
    outside = [p_mean_below(logs, low), *(p_mean_below(-logs, -one) for one in high)]
    return max(inside), min(outside)
