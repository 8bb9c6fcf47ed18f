"""Judging sentences: which of two is better, how close they are, how often a limit is met."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from gradleak.claims.evidence import Evidence, NotJudged, describe, networks, runs
from gradleak.claims.model import Claim, Tolerance
from gradleak.claims.outcome import Outcome, holds
from gradleak.claims.queries import (
    Answers,
    Close,
    Compare,
    Correlation,
    Effect,
    Limit,
    Measured,
    Share,
    Where,
)
from gradleak.claims.statistics import (
    FAILED_LOG,
    MIN_UNITS,
    MSE_FLOOR,
    interval_of_mean,
    p_below_zero,
    p_majority,
    spearman,
)
from gradleak.claims.values import DECIBEL, HIGHER_IS_BETTER, LOGARITHMIC

RUN = ["seed", "batch", "index"]
UNIT_COLUMN = {"seed": "seed", "image": "index", "batch": "batch"}
UNITS = {"seed": "seeds", "image": "images", "batch": "batches"}


def cost(values: pd.Series, metric: str) -> pd.Series:
    """Lower is better: log10 of an error, −PSNR/10, −SSIM; a failed run (NaN) costs 300."""
    if metric in LOGARITHMIC:
        scaled = np.log10(values.clip(lower=MSE_FLOOR))
    elif metric in DECIBEL:
        scaled = -values / 10
    else:
        scaled = -values if metric in HIGHER_IS_BETTER else values
    return scaled.clip(upper=FAILED_LOG).fillna(FAILED_LOG)


def select(
    evidence: Evidence, where: Where, metric: str, images: str, answers: Answers = "own"
) -> Selected:
    """Select runs, once for all claims that ask for the same."""
    key = f"{images};{metric};{answers};{sorted(where.items())}"
    if key not in evidence.selections:
        evidence.selections[key] = Selected(evidence, where, metric, images, answers)
    selected: Selected = evidence.selections[key]
    return selected


class Selected:
    """Runs of a selection, averaged over its models for each seed, batch and image.

    Several answers to one gradient are first put together as their median, in which a failed one
    counts as the worst.
    """

    def __init__(
        self, evidence: Evidence, where: Where, metric: str, images: str, answers: Answers
    ) -> None:
        found = runs(evidence, where, metric, images, answers)
        one = _one_answer(found, metric) if found["answer"].nunique() > 1 else found
        groups = one.groupby(RUN, sort=True)
        self.value = groups["value"].mean().where(groups["ok"].all())
        self.cost = cost(self.value, metric)
        self.n, self.n_ok = len(found), int(found["ok"].sum())
        self.where = where


def _one_answer(found: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row for each model, seed and image: the median of its answers."""
    worst = -math.inf if metric in HIGHER_IS_BETTER else math.inf
    filled = found.assign(value=found["value"].fillna(worst))
    median = filled.groupby(["model", *RUN])["value"].median().rename("value").reset_index()
    return median.assign(ok=np.isfinite(median["value"]))


def _common(sides: list[Selected]) -> pd.Index:
    """Give the runs (seed, batch, index) that all sides tried."""
    common = sides[0].cost.index
    for side in sides[1:]:
        common = common.intersection(side.cost.index)
    if common.empty:
        raise NotJudged(f"data: no seed and image in common for {describe(sides[0].where)}")
    return common


def _by_unit(values: pd.Series, unit: str) -> np.ndarray:
    return values.groupby(level=UNIT_COLUMN[unit]).mean().to_numpy()


def _difference(one: Selected, other: Selected, unit: str) -> np.ndarray:
    """Difference of costs, a mean for each unit; where `one` failed it is the worst, 300."""
    common = _common([one, other])
    first, second = one.cost[common], other.cost[common]
    difference = (first - second).where(first < FAILED_LOG, FAILED_LOG)
    return _by_unit(difference, unit)


def _draws(
    unit: str, units: int, seeds: Iterable[Any], batches: Iterable[Any] | None = None
) -> str:
    """Add to a reason what the units share: images a batch, and one draw of the weights."""
    of = len(set(() if batches is None else batches))
    shared = f" of {of} {'batch' if of == 1 else 'batches'}" if 0 < of < units else ""
    if unit != "image":
        shared = ""
    return shared + (", one draw of the weights" if unit != "seed" and len(set(seeds)) == 1 else "")


def _enough(units: int, unit: str) -> None:
    if units < MIN_UNITS:
        few = f"{units} {UNITS[unit]}"
        raise NotJudged(f"scale: {few} cannot reach a p-value of 0.05, {MIN_UNITS} can")


def _interval(differences: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Interval of the mean difference; none where a run failed, since 300 is only a rank."""
    if np.any(np.abs(differences) > FAILED_LOG / 10):
        return math.nan, math.nan
    return interval_of_mean(differences, log=False, level=level)


def _power(value: float, metric: str) -> float:
    """Turn a difference of log10 MSE, or of a PSNR, into a ratio; other metrics stay."""
    if metric not in (*LOGARITHMIC, *DECIBEL) or math.isnan(value):
        return value
    return math.inf if value > FAILED_LOG else 10.0**value


def judge_compare(claim: Claim, tolerance: Tolerance, evidence: Evidence, images: str) -> Outcome:
    """Judge comparisons by Wilcoxon's signed ranks over units; all must be significant.

    Ours is the ratio of geometric mean MSEs, better to than, of the least clear comparison; of
    another metric the mean difference, below 0 where `better` is.
    """
    query = claim.query
    assert isinstance(query, Compare)
    n, n_ok = 0, 0
    results: list[tuple[float, np.ndarray]] = []
    seeds, batches = set[str](), set[str]()
    for pair in query.comparisons:
        better, than = (
            select(evidence, {**query.where, **where}, query.metric, images, query.answers)
            for where in (pair.better, pair.than)
        )
        n, n_ok = n + better.n + than.n, n_ok + better.n_ok + than.n_ok
        differences = _difference(better, than, query.unit)
        _enough(differences.size, query.unit)
        results.append((p_below_zero(differences), differences))
        common = _common([better, than])
        seeds.update(common.get_level_values("seed"))
        batches.update(common.get_level_values("batch"))
    p, worst = max(results, key=lambda result: (result[0], float(np.mean(result[1]))))
    low, high = _interval(worst)
    mean = math.nan if math.isnan(low) else float(worst.mean())
    ours, low, high = (_power(value, query.metric) for value in (mean, low, high))
    words = f"p = {p:.2g} over {worst.size} {UNITS[query.unit]}"
    words += _draws(query.unit, worst.size, seeds, batches)
    if len(results) > 1:
        words += f", the largest of {len(results)} comparisons"
    if n_ok < n:
        words += f"; {n - n_ok} of {n} runs failed and count as worst"
    return Outcome(holds(p < tolerance.alpha), words, ours, low, high, n, n_ok)


def judge_close(claim: Claim, tolerance: Tolerance, evidence: Evidence, images: str) -> Outcome:
    """Judge equivalence: the (1 − 2α) interval of the mean difference lies within ± amount.

    With ``one_is`` only one end of it counts. A run that failed on the side that the sentence
    lets be worse counts as no difference, on the other side against the sentence.
    """
    query = claim.query
    assert isinstance(query, Close) and tolerance.amount is not None
    one, other = (
        select(evidence, {**query.where, **where}, query.metric, images, query.answers)
        for where in (query.one, query.other)
    )
    common = _common([one, other])
    n, n_ok = one.n + other.n, one.n_ok + other.n_ok
    if query.measure == "value":
        difference = one.value[common] - other.value[common]
    else:
        difference = one.cost[common] - other.cost[common]
    failed = {"one": one.value[common].isna(), "other": other.value[common].isna()}
    granted = {"alike": "", "not_better": "one", "not_worse": "other"}[query.one_is]
    if any(lost.any() for side, lost in failed.items() if side != granted):
        return Outcome("differs", f"{n - n_ok} of {n} runs failed", n=n, n_ok=n_ok)
    units = _by_unit(difference.where(~(failed["one"] | failed["other"]), 0.0), query.unit)
    _enough(units.size, query.unit)
    low, high = interval_of_mean(units, log=False, level=1 - 2 * tolerance.alpha)
    above = query.one_is == "not_worse" or -tolerance.amount < low
    below = query.one_is == "not_better" or high < tolerance.amount
    ok = above and below
    shared = (common.get_level_values(level) for level in ("seed", "batch"))
    words = (
        f"{1 - 2 * tolerance.alpha:.0%} interval of the mean difference over {units.size} "
        f"{UNITS[query.unit]} {'lies' if ok else 'does not lie'} {_range(query, tolerance.amount)}"
        f"{_draws(query.unit, units.size, *shared)}"
    )
    if n_ok < n:
        words += f"; {n - n_ok} of {n} runs failed"
    return Outcome(holds(ok), words, float(units.mean()), low, high, n, n_ok)


def _range(query: Close, amount: float) -> str:
    words = {"alike": "within ±", "not_better": "above -", "not_worse": "below "}
    return f"{words[query.one_is]}{amount:g}"


def judge_limit(claim: Claim, tolerance: Tolerance, evidence: Evidence, images: str) -> Outcome:
    """Judge a limit by the sign test: a unit succeeds if all its runs meet the limit.

    A failed run has an infinite MSE: it never meets `at_most` and meets `at_least` of an error.
    With ``best_of`` the best attack or answer on each seed and image is its one run.
    """
    query = claim.query
    assert isinstance(query, Limit) and tolerance.amount is not None
    found = runs(evidence, query.where, query.metric, images, query.answers)
    if query.best_of:
        groups = found.groupby(RUN, sort=True)
        value = groups["value"].max() if query.metric in HIGHER_IS_BETTER else groups["value"].min()
        found = pd.DataFrame({"value": value, "ok": groups["ok"].any()}).reset_index()
    worst = -math.inf if query.metric in HIGHER_IS_BETTER else math.inf
    values = found["value"].fillna(worst)
    at_most = tolerance.rule == "at_most"
    met = _meets(values, tolerance)
    units = met.groupby(found[UNIT_COLUMN[query.unit]]).all()
    _enough(units.size, query.unit)
    p = p_majority(int(units.sum()), units.size)
    words = (
        f"{int(units.sum())} of {units.size} {UNITS[query.unit]} are all "
        f"{'at most' if at_most else 'at least'} {tolerance.amount:g}, p = {p:.2g}"
        f"{_draws(query.unit, units.size, found['seed'], found['batch'])}"
    )
    ok = found["ok"]
    ours, low, high = (float(found.loc[ok, "value"].quantile(q)) for q in (0.5, 0.025, 0.975))
    return Outcome(holds(p < tolerance.alpha), words, ours, low, high, len(found), int(ok.sum()))


def _meets(values: pd.Series, tolerance: Tolerance) -> pd.Series:
    assert tolerance.amount is not None
    at_most = tolerance.rule == "at_most"
    return values <= tolerance.amount if at_most else values >= tolerance.amount


def judge_share(claim: Claim, tolerance: Tolerance, evidence: Evidence, images: str) -> Outcome:
    """Judge which of two meets a limit more often: Wilcoxon's signed ranks over units.

    A unit's value is the share of its runs that meet the limit; a failed run does not. Ours is
    the mean difference of shares, with its 95 % interval.
    """
    query = claim.query
    assert isinstance(query, Share)
    counts: dict[str, tuple[int, int]] = {}
    seeds: set[str] = set()

    def share(part: Measured) -> pd.Series:
        """Share of each unit's runs that meet the limit; counts the runs on the way."""
        where = {**query.where, **part.where}
        found = runs(evidence, where, part.metric, images, query.answers)
        # Two metrics of the same runs count them once, as ok if both are.
        same, ok = str(sorted(where.items())), int(found["ok"].sum())
        counts[same] = len(found), min(ok, counts.get(same, (0, ok))[1])
        seeds.update(found["seed"])
        limit = (
            tolerance
            if part.amount is None
            else tolerance.model_copy(update={"amount": part.amount})
        )
        met = found["ok"] & _meets(found["value"], limit)
        return met.groupby(found[UNIT_COLUMN[query.unit]]).mean()

    shares = [share(part) for part in (query.more, query.less)]
    common = shares[0].index.intersection(shares[1].index)
    more, less = (found[common].to_numpy(dtype=float) for found in shares)
    _enough(common.size, query.unit)
    p = p_below_zero(less - more)
    low, high = interval_of_mean(more - less, log=False)
    units = f"{common.size} {UNITS[query.unit]}"
    words = f"{more.mean():.0%} against {less.mean():.0%}, p = {p:.2g} over {units}"
    words += _draws(query.unit, common.size, seeds)
    n, n_ok = (sum(column) for column in zip(*counts.values(), strict=True))
    if n_ok < n:
        words += f"; {n - n_ok} of {n} runs failed and do not meet it"
    gap = float((more - less).mean())
    return Outcome(holds(p < tolerance.alpha), words, gap, low, high, n, n_ok)


def judge_correlation(claim: Claim, tolerance: Tolerance, evidence: Evidence) -> Outcome:
    """Judge the sign of a rank correlation over networks: its bootstrap interval excludes 0."""
    query = claim.query
    assert isinstance(query, Correlation)
    x, y, n_ok = networks(evidence, query.x, query.y)
    rho, low, high = spearman(x, y, 1 - tolerance.alpha)
    if math.isnan(rho):
        raise NotJudged(f"scale: {x.size} networks give no rank correlation")
    ok = high < 0 if query.sign == "negative" else low > 0
    words = f"Spearman's correlation over {x.size} networks, bootstrap interval"
    return Outcome(holds(ok), words, rho, low, high, int(x.size), n_ok)


def judge_effect(claim: Claim, tolerance: Tolerance, evidence: Evidence, images: str) -> Outcome:
    """Judge whether an effect is smaller than differences between models.

    For each seed and image: the mean of |difference| over `pairs`, less the median |difference|
    over all pairs within `among`; Wilcoxon's signed ranks over units. Ours is the mean gap.
    """
    query = claim.query
    assert isinstance(query, Effect)

    def chosen(where: Where) -> Selected:
        return select(evidence, {**query.where, **where}, query.metric, images)

    pairs = [(chosen(pair.one), chosen(pair.other)) for pair in query.pairs]
    among = [chosen(where) for where in query.among]
    paired = [side for pair in pairs for side in pair]
    common = _common([*paired, *among])
    effect = sum((one.cost[common] - other.cost[common]).abs() for one, other in pairs)
    between = pd.concat(
        [(a.cost[common] - b.cost[common]).abs() for a, b in itertools.combinations(among, 2)],
        axis=1,
    ).median(axis=1)
    failed = pd.concat([side.value[common].isna() for side in paired], axis=1).any(axis=1)
    gap = (effect / len(pairs) - between).where(~failed, FAILED_LOG)
    units = _by_unit(gap, query.unit)
    _enough(units.size, query.unit)
    p = p_below_zero(units)
    low, high = _interval(units)
    n = sum(side.n for side in [*paired, *among])
    n_ok = sum(side.n_ok for side in [*paired, *among])
    seeds = common.get_level_values("seed")
    over = f"{units.size} {UNITS[query.unit]}{_draws(query.unit, units.size, seeds)}"
    words = f"effect less difference between models, p = {p:.2g} over {over}"
    ours = math.nan if math.isnan(low) else float(units.mean())
    return Outcome(holds(p < tolerance.alpha), words, ours, low, high, n, n_ok)
