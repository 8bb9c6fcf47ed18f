"""Sentences that compare runs in pairs: better, close, or effects of a size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import UNIT_COLUMN, UNITS, Form, Unit, enough, percent, shared
from gradleak.claims.metrics import cost, is_error_or_psnr, label, label_of_cost, worst
from gradleak.claims.outcome import DIFFERS, NotJudged, Outcome, failed, holds, joined, plainly
from gradleak.claims.printed import Printed
from gradleak.claims.statement import Answers, Closed, Statement, Tolerance, Where, describe
from gradleak.claims.statistics import FAILED_LOG, interval_of_mean, p_below_zero

RUN = ["seed", "batch", "index"]


class Selected:
    """Runs of a selection, averaged over its models for each seed, batch and image.

    Several reconstructions from one gradient are first reduced to their median, with failed ones as
    the worst.
    """

    def __init__(self, found: pd.DataFrame, where: Where, metric: str) -> None:
        several = found["answer"].nunique() > 1
        groups = (one_answer(found, metric) if several else found).groupby(RUN, sort=True)
        self.value = groups["value"].mean().where(groups["ok"].all())
        self.cost = cost(self.value, metric)
        self.n, self.n_ok = len(found), int(found["ok"].sum())
        self.where = where
        # Printed values, for each image.
        self.text = groups["text"].agg("; ".join) if "text" in found else pd.Series(dtype=str)


def select(evidence: Evidence, where: Where, metric: str, answers: Answers = "own") -> Selected:
    """Select runs, cached for all claims with the same selection."""
    key = f"{evidence.images};{metric};{answers};{sorted(where.items())}"
    if key not in evidence.selections:
        found = evidence.runs(where, metric, answers)
        evidence.selections[key] = Selected(found, where, metric)
    selected: Selected = evidence.selections[key]
    return selected


def one_answer(found: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Reduce to one row per model, seed and image: the median of its answers."""
    filled = found.assign(value=found["value"].fillna(worst(metric)))
    median = filled.groupby(["model", *RUN])["value"].median().rename("value").reset_index()
    return median.assign(ok=np.isfinite(median["value"]))


def _common(sides: Sequence[Selected]) -> pd.Index:
    """Runs (seed, batch, index) that all sides tried."""
    common = sides[0].cost.index
    for side in sides[1:]:
        common = common.intersection(side.cost.index)
    if common.empty:
        raise NotJudged(f"data: no seed and image in common for {describe(sides[0].where)}")
    return common


def _by_unit(values: pd.Series, unit: str) -> np.ndarray:
    return values.groupby(level=UNIT_COLUMN[unit]).mean().to_numpy()


def _interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean difference and its interval; none if a run failed, since 300 is only a rank."""
    if np.any(np.abs(differences) > FAILED_LOG / 10):
        return math.nan, math.nan, math.nan
    return float(differences.mean()), *interval_of_mean(differences, log=False)


def _texts(one: Selected, other: Selected, against: pd.Series) -> Iterator[str]:
    """Printed values of two sides that contradict the sentence."""
    for place in against[against].index:
        yield f"{one.text[place]} against {other.text[place]}"


class Better(Closed):
    """`better` beats `than`; several models on one side are averaged per seed and image."""

    better: Where
    than: Where


class Compare(Form):
    """Paired comparisons of runs, each tested over `unit`; all must hold."""

    form: Literal["compare"]
    metric: str = "mse"
    unit: Unit
    where: Where = Field(default_factory=dict)
    answers: Answers = "own"
    comparisons: list[Better] = Field(min_length=1)
    rules = ("alpha",)
    asks = "both"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge comparisons by Wilcoxon's signed ranks over units; all must be significant.

        Our number is from the least clear comparison: the ratio of geometric mean MSEs, better to
        than; for other metrics the mean difference, below 0 where `better` is. If a side failed,
        the difference is the worst, 300.
        """
        pairs = (
            [
                select(evidence, {**self.where, **where}, self.metric, self.answers)
                for where in (pair.better, pair.than)
            ]
            for pair in self.comparisons
        )
        if isinstance(evidence, Printed):
            return plainly(
                text
                for one, other in pairs
                for text in _texts(one, other, (one.cost - other.cost).dropna() > 0)
            )
        results: list[tuple[float, float, np.ndarray]] = []
        common: list[pd.Index] = []
        sides: list[Selected] = []
        for one, other in pairs:
            sides += [one, other]
            common.append(_common([one, other]))
            first, second = one.cost[common[-1]], other.cost[common[-1]]
            difference = (first - second).where(first < FAILED_LOG, FAILED_LOG)
            units = _by_unit(difference, self.unit)
            enough(units.size, self.unit)
            results.append((p_below_zero(units), float(units.mean()), units))
        p, _, units = max(results, key=lambda result: result[:2])
        ours, low, high = (_power(value, self.metric) for value in _interval(units))
        words = f"p = {p:.2g} over {units.size} {UNITS[self.unit]}"
        words += _shared(self.unit, units, common[0].append(common[1:]))
        if len(results) > 1:
            words += f", the largest of {len(results)} comparisons"
        n, n_ok = _counted(sides)
        words = joined(words, failed(n, n_ok, " and count as worst"))
        return Outcome(holds(p < tolerance.alpha), words, ours, low, high, n, n_ok)

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        least = "" if len(self.comparisons) == 1 else ", of the least clear comparison"
        if is_error_or_psnr(self.metric):
            errors = "RMSEs" if self.metric in ("rmse_255", "psnr_rmse") else "MSEs"
            sides = f"ratio of {errors}, the better side's over the other's"
            return f"{sides}{least}; below 1 where it holds"
        return f"mean difference of {label_of_cost(self.metric)}{least}; below 0 where it holds"


def _power(value: float, metric: str) -> float:
    """Convert a difference of log10 MSE, or of PSNR, to a ratio; other metrics are unchanged."""
    if not is_error_or_psnr(metric) or math.isnan(value):
        return value
    return math.inf if value > FAILED_LOG else 10.0**value


def _counted(sides: Sequence[Selected]) -> tuple[int, int]:
    return sum(side.n for side in sides), sum(side.n_ok for side in sides)


def _shared(unit: str, units: np.ndarray, common: pd.Index) -> str:
    seeds, batches = (common.get_level_values(level) for level in ("seed", "batch"))
    return shared(unit, units.size, seeds, batches)


class Close(Form):
    """`one` and `other` differ little, in value or in log10.

    With `one_is` only one direction counts: ``not_better`` or ``not_worse`` by more than that.
    """

    form: Literal["close"]
    metric: str = "mse"
    measure: Literal["value", "log"]
    unit: Unit
    where: Where = Field(default_factory=dict)
    answers: Answers = "own"
    one: Where
    other: Where
    one_is: Literal["alike", "not_better", "not_worse"] = "alike"
    rules = ("equivalence",)
    asks = "both"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge equivalence: the (1 − 2α) interval of the mean difference lies within ± amount.

        With ``one_is`` only one end of it counts. A run that failed counts as no difference on the
        side that may be worse, and against the sentence on the other.
        """
        one, other = (
            select(evidence, {**self.where, **where}, self.metric, self.answers)
            for where in (self.one, self.other)
        )
        difference = one.value - other.value if self.measure == "value" else one.cost - other.cost
        if isinstance(evidence, Printed):
            gaps = difference.dropna()
            gaps = {"alike": gaps.abs(), "not_better": -gaps, "not_worse": gaps}[self.one_is]
            return plainly(_texts(one, other, gaps > tolerance.limit))
        common = _common([one, other])
        n, n_ok = _counted([one, other])
        lost = {"one": one.value[common].isna(), "other": other.value[common].isna()}
        granted = {"alike": "", "not_better": "one", "not_worse": "other"}[self.one_is]
        if any(side.any() for name, side in lost.items() if name != granted):
            return Outcome(DIFFERS, failed(n, n_ok), n=n, n_ok=n_ok)
        gaps = difference[common].where(~(lost["one"] | lost["other"]), 0.0)
        units = _by_unit(gaps, self.unit)
        enough(units.size, self.unit)
        low, high = interval_of_mean(units, log=False, level=1 - 2 * tolerance.alpha)
        above = self.one_is == "not_worse" or -tolerance.limit < low
        ok = above and (self.one_is == "not_better" or high < tolerance.limit)
        sign = {"alike": "within ±", "not_better": "above -", "not_worse": "below "}[self.one_is]
        words = (
            f"{1 - 2 * tolerance.alpha:.0%} interval of the mean difference over {units.size} "
            f"{UNITS[self.unit]} {'lies' if ok else 'does not lie'} {sign}{tolerance.limit:g}"
            f"{_shared(self.unit, units, common)}"
        )
        words = joined(words, failed(n, n_ok))
        return Outcome(holds(ok), words, float(units.mean()), low, high, n, n_ok)

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        of = label(self.metric, self.metric)
        if self.measure == "log":
            errors = is_error_or_psnr(self.metric)
            of = "log10 of the error" if errors else label_of_cost(self.metric)
        return f"mean difference of {of}, the first side's less the other's"

    def interval(self, tolerance: Tolerance) -> str:
        """See `Form.interval`."""
        return percent(1 - 2 * tolerance.alpha)


class Pair(Closed):
    """Two selections compared run by run."""

    one: Where
    other: Where


class Effect(Form):
    """The mean effect within `pairs` is smaller than the median difference within `among`."""

    form: Literal["effect"]
    metric: str = "mse"
    unit: Unit
    where: Where = Field(default_factory=dict)
    pairs: list[Pair] = Field(min_length=1)
    among: list[Where] = Field(min_length=2)
    rules = ("alpha",)
    words = (
        "the change's effect less the usual difference between networks, in log10 MSE; "
        "below 0 where the sentence holds"
    )

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge whether an effect is smaller than differences between models.

        For each seed and image: the mean of |difference| over `pairs`, minus the median
        |difference| over all pairs within `among`; Wilcoxon's signed ranks over units. Our number
        is the mean gap.
        """

        def chosen(where: Where) -> Selected:
            return select(evidence, {**self.where, **where}, self.metric)

        def gaps(one: Selected, other: Selected) -> pd.Series:
            return (one.cost[common] - other.cost[common]).abs()

        pairs = [(chosen(pair.one), chosen(pair.other)) for pair in self.pairs]
        among = [chosen(where) for where in self.among]
        paired = [side for pair in pairs for side in pair]
        common = _common([*paired, *among])
        effect = sum(gaps(*pair) for pair in pairs)
        usual = pd.concat([gaps(*pair) for pair in itertools.combinations(among, 2)], axis=1)
        lost = pd.concat([side.value[common].isna() for side in paired], axis=1).any(axis=1)
        gap = (effect / len(pairs) - usual.median(axis=1)).where(~lost, FAILED_LOG)
        units = _by_unit(gap, self.unit)
        enough(units.size, self.unit)
        p = p_below_zero(units)
        over = f"{units.size} {UNITS[self.unit]}"
        over += shared(self.unit, units.size, common.get_level_values("seed"))
        words = f"effect less difference between models, p = {p:.2g} over {over}"
        n, n_ok = _counted([*paired, *among])
        return Outcome(holds(p < tolerance.alpha), words, *_interval(units), n, n_ok)
