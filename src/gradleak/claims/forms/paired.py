"""Sentences that compare runs, tested over units: better, close, effects of a size."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field

from gradleak.claims import metrics
from gradleak.claims.evidence import Evidence
from gradleak.claims.forms import base
from gradleak.claims.forms.base import Form, Unit
from gradleak.claims.outcome import (
    DIFFERS,
    NOT_JUDGED,
    NotJudged,
    Outcome,
    failed,
    joined,
    plainly,
    tested,
)  # fmt: skip
from gradleak.claims.printed import Printed
from gradleak.claims.statement import Answers, Closed, Statement, Tolerance, Where, describe
from gradleak.claims.statistics import (
    FAILED_LOG,
    LEVEL,
    bonferroni,
    interval_of_mean,
    p_mean_below,
    p_words,
)  # fmt: skip

RUN = ["seed", "batch", "index"]


class Selected:
    """Runs of a selection, averaged over its models for each seed, batch and image.

    Several reconstructions from one gradient are first reduced to their median.
    """

    def __init__(self, found: pd.DataFrame, where: Where, metric: str) -> None:
        several = found["answer"].nunique() > 1
        groups = (one_answer(found, metric) if several else found).groupby(RUN, sort=True)
        self.value = groups["value"].mean().where(groups["ok"].all())
        self.cost = metrics.cost(self.value, metric)
        self.n, self.n_ok = len(found), int(found["ok"].sum())
        self.where = where
        # Printed values, for each image.
        self.text = groups["text"].agg("; ".join) if "text" in found else pd.Series(dtype=str)


def one_answer(found: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Reduce to one row per model, seed and image: the median of its answers."""
    filled = found.assign(value=found["value"].fillna(metrics.worst(metric)))
    median = filled.groupby(["model", *RUN])["value"].median().rename("value").reset_index()
    return median.assign(ok=np.isfinite(median["value"]))


def common_runs(sides: Sequence[Selected]) -> pd.Index:
    """Runs (seed, batch, index) that all sides tried."""
    common = sides[0].cost.index
    for side in sides[1:]:
        common = common.intersection(side.cost.index)
    if common.empty:
        raise NotJudged(f"data: no seed and image in common for {describe(sides[0].where)}")
    return common


def _by_unit(values: pd.Series, unit: Unit) -> np.ndarray:
    """Means over units."""
    return values.groupby(level=base.UNIT_COLUMN[unit]).mean().to_numpy()


def counts(sides: Sequence[Selected]) -> tuple[int, int]:
    """Number of runs of all sides, and of those with a value."""
    return sum(side.n for side in sides), sum(side.n_ok for side in sides)


def _interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean difference and its interval; none if a run failed, since 300 is only a rank."""
    if np.any(np.abs(differences) > FAILED_LOG / 10):
        return math.nan, math.nan, math.nan
    return float(differences.mean()), *interval_of_mean(differences, False, LEVEL)


def _texts(one: Selected, other: Selected, against: pd.Series) -> Iterator[str]:
    for place in against[against].index:
        yield f"{one.text[place]} against {other.text[place]}"


class Paired(Form):
    """A comparison of runs of one metric, over units, within `where`."""

    metric: str = "mse"
    unit: Unit
    where: Where = Field(default_factory=dict)

    def _side(self, evidence: Evidence, where: Where, answers: Answers = "own") -> Selected:
        """Runs of one side, cached for all claims with the same selection."""
        where = {**self.where, **where}
        key = f"{evidence.images};{self.metric};{answers};{sorted(where.items())}"
        if key not in evidence.selections:
            found = evidence.runs(where, self.metric, answers)
            evidence.selections[key] = Selected(found, where, self.metric)
        selected: Selected = evidence.selections[key]
        return selected

    def _experiments(self, *wheres: Where) -> list[str]:
        return base.experiments(*({**self.where, **where} for where in wheres))


class Better(Closed):
    """`better` beats `than`; several models on one side are averaged per seed and image."""

    better: Where
    than: Where


class Compare(Paired):
    """Paired comparisons of runs, each tested over `unit`; all must hold."""

    form: Literal["compare"]
    answers: Answers = "own"
    comparisons: list[Better] = Field(min_length=1)
    rules = ("alpha",)
    asks = "both"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge comparisons by Wilcoxon's signed ranks over units; all must be significant.

        Our number is of the least clear one: the ratio of geometric mean MSEs, better to than; for
        other metrics the mean difference. If a side failed, the difference is the worst, 300.
        """
        pairs = (
            [self._side(evidence, where, self.answers) for _, where in pair]
            for pair in self.comparisons
        )
        if isinstance(evidence, Printed):
            worse = (_texts(a, b, (a.cost - b.cost).dropna() > 0) for a, b in pairs)
            return plainly(itertools.chain.from_iterable(worse))
        results: list[tuple[float, float, float, np.ndarray]] = []
        common: list[pd.Index] = []
        n = n_ok = 0
        for one, other in pairs:
            n, n_ok = n + one.n + other.n, n_ok + one.n_ok + other.n_ok
            common.append(common_runs([one, other]))
            first, second = one.cost[common[-1]], other.cost[common[-1]]
            unit = base.independent(self.unit, common[-1])
            units = _by_unit((first - second).where(first < FAILED_LOG, FAILED_LOG), unit)
            results.append((*base.both_sides(units), float(units.mean()), units))
        # Too few units have no p-value.
        p, _, _, units = max(results, key=lambda result: (np.nan_to_num(result[0]), result[2]))
        p_against = bonferroni(result[1] for result in results)
        ours, low, high = (_power(value, self.metric) for value in _interval(units))
        if few := base.few(min(result[3].size for result in results), unit):
            return Outcome(NOT_JUDGED, few, ours, low, high, n, n_ok)
        seeds = common[0].append(common[1:]).get_level_values("seed")
        words = f"{p_words(p)} over {base.counted(unit, units.size, seeds)}"
        if len(results) > 1:
            words += f", the largest of {len(results)} comparisons"
        words = joined(words, failed(n, n_ok, " and count as worst"))
        verdict = tested(p, p_against, tolerance.alpha)
        return Outcome(verdict, words, ours, low, high, n, n_ok, p=p, p_against=p_against)

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return self._experiments(*(where for pair in self.comparisons for _, where in pair))

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        least = "" if len(self.comparisons) == 1 else ", of the least clear comparison"
        if metrics.is_error_or_psnr(self.metric):
            errors = "RMSEs" if self.metric in ("rmse_255", "psnr_rmse") else "MSEs"
            sides = f"ratio of {errors}, the better side's over the other's"
            return f"{sides}{least}; below 1 where it holds"
        of = metrics.label_of_cost(self.metric)
        return f"mean difference of {of}{least}; below 0 where it holds"


def _power(value: float, metric: str) -> float:
    """Convert a difference of log10 MSE, or of PSNR, to a ratio; other metrics are unchanged."""
    if not metrics.is_error_or_psnr(metric) or math.isnan(value):
        return value
    return math.inf if value > FAILED_LOG else 10.0**value


class Close(Paired):
    """`one` and `other` differ little, in value or in log10.

    With `one_is` only one direction counts: ``not_better`` or ``not_worse`` by more than that.
    """

    form: Literal["close"]
    measure: Literal["value", "log"]
    answers: Answers = "own"
    one: Where
    other: Where
    one_is: Literal["alike", "not_better", "not_worse"] = "alike"
    rules = ("equivalence",)
    asks = "both"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge equivalence: the (1 − 2α) interval of the mean difference lies within ± amount.

        A run that failed counts as no difference on the side that may be worse, and against the
        sentence on the other.
        """
        one, other = (self._side(evidence, w, self.answers) for w in (self.one, self.other))
        difference = one.value - other.value if self.measure == "value" else one.cost - other.cost
        if isinstance(evidence, Printed):
            gaps = difference.dropna()
            gaps = {"alike": gaps.abs(), "not_better": -gaps, "not_worse": gaps}[self.one_is]
            return plainly(_texts(one, other, gaps > tolerance.limit))
        common = common_runs([one, other])
        n, n_ok = counts([one, other])
        lost = {"one": one.value[common].isna(), "other": other.value[common].isna()}
        granted = {"alike": "", "not_better": "one", "not_worse": "other"}[self.one_is]
        if any(side.any() for name, side in lost.items() if name != granted):
            return Outcome(DIFFERS, failed(n, n_ok), n=n, n_ok=n_ok)
        gaps = difference[common].where(~(lost["one"] | lost["other"]), 0.0)
        unit = base.independent(self.unit, common)
        units = _by_unit(gaps, unit)
        low, high = interval_of_mean(units, log=False, level=1 - 2 * tolerance.alpha)
        made = Outcome(NOT_JUDGED, base.few(units.size, unit), float(units.mean()), low, high)
        made = replace(made, n=n, n_ok=n_ok)
        if made.reason:
            return made
        p, p_against = self._p_values(units, tolerance.limit)
        verdict = tested(p, p_against, tolerance.alpha)
        lies = "lies" if p < tolerance.alpha else "does not lie"
        sign = {"alike": "within ±", "not_better": "above -", "not_worse": "below "}[self.one_is]
        words = (
            f"{1 - 2 * tolerance.alpha:.0%} interval of the mean difference over {units.size} "
            f"{base.UNITS[unit]} {lies} {sign}{tolerance.limit:g}"
            f"{base.shared(unit, common.get_level_values('seed'))}"
        )
        words = joined(words, failed(n, n_ok))
        return replace(made, verdict=verdict, reason=words, p=p, p_against=p_against)

    def _p_values(self, units: np.ndarray, limit: float) -> tuple[float, float]:
        """P-values of two one-sided tests: the mean lies within the limit, or beyond it."""
        below, above = p_mean_below(units, limit), p_mean_below(-units, limit)
        beyond = p_mean_below(-units, -limit), p_mean_below(units, -limit)
        if self.one_is == "not_worse":
            return below, beyond[0]
        if self.one_is == "not_better":
            return above, beyond[1]
        return max(below, above), min(beyond)

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return self._experiments(self.one, self.other)

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        of = metrics.label(self.metric, self.metric)
        if self.measure == "log":
            errors = metrics.is_error_or_psnr(self.metric)
            of = "log10 of the error" if errors else metrics.label_of_cost(self.metric)
        return f"mean difference of {of}, the first side's less the other's"

    def interval(self, tolerance: Tolerance) -> str:
        """See `Form.interval`."""
        return base.percent(1 - 2 * tolerance.alpha)


class Pair(Closed):
    """Two selections compared run by run."""

    one: Where
    other: Where


class Effect(Paired):
    """The mean effect within `pairs` is smaller than the median difference within `among`."""

    form: Literal["effect"]
    pairs: list[Pair] = Field(min_length=1)
    among: list[Where] = Field(min_length=2)
    rules = ("alpha",)
    words = (
        "the change's effect less the usual difference between networks, in log10 MSE; "
        "below 0 where the sentence holds"
    )

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge whether an effect is smaller than differences between models.

        For each seed and image: the mean |difference| over `pairs`, minus the median over all pairs
        within `among`; Wilcoxon's signed ranks over units. Our number is the mean gap.
        """

        def gaps(one: Selected, other: Selected) -> pd.Series:
            return (one.cost[common] - other.cost[common]).abs()

        pairs = [[self._side(evidence, where) for _, where in pair] for pair in self.pairs]
        among = [self._side(evidence, where) for where in self.among]
        paired = [side for pair in pairs for side in pair]
        common = common_runs([*paired, *among])
        effect = sum(gaps(*pair) for pair in pairs)
        usual = pd.concat([gaps(*pair) for pair in itertools.combinations(among, 2)], axis=1)
        lost = pd.concat([side.value[common].isna() for side in paired], axis=1).any(axis=1)
        gap = (effect / len(pairs) - usual.median(axis=1)).where(~lost, FAILED_LOG)
        unit = base.independent(self.unit, common)
        units = _by_unit(gap, unit)
        base.enough(units.size, unit)
        p, p_against = base.both_sides(units)
        over = base.counted(unit, units.size, common.get_level_values("seed"))
        words = f"effect less difference between models, {p_words(p)} over {over}"
        made = Outcome(tested(p, p_against, tolerance.alpha), words, *_interval(units))
        n, n_ok = counts([*paired, *among])
        return replace(made, n=n, n_ok=n_ok, p=p, p_against=p_against)

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return self._experiments(*(w for pair in self.pairs for _, w in pair), *self.among)
