"""Judging numbers: single draws against intervals, and exact values."""

from __future__ import annotations

import math

import numpy as np

from gradleak.claims.evidence import Evidence, layer_values, runs
from gradleak.claims.model import Claim, Column, Columns, Runs, Side, Tolerance
from gradleak.claims.outcome import DIFFERS, EXCEEDS, REPRODUCED, Outcome, holds
from gradleak.claims.statistics import interval_of_mean, prediction_interval

HIGHER_IS_BETTER = ("psnr", "psnr_255", "ssim")
DECIBEL = ("psnr", "psnr_255")
LOGARITHMIC = ("mse",)


def interval(values: np.ndarray, metric: str, tolerance: Tolerance) -> tuple[float, float]:
    """Make the interval that a tolerance of rule prediction, mean or factor allows."""
    log = metric in LOGARITHMIC
    if tolerance.rule == "factor":
        low = high = float(np.median(values))
    else:
        make = interval_of_mean if tolerance.rule == "mean" else prediction_interval
        low, high = make(values, log, tolerance.level)
    if metric in DECIBEL:
        widen = 10 * math.log10(tolerance.factor)
        return low - widen, high + widen
    return low / tolerance.factor, high * tolerance.factor


def _against_interval(
    paper: float, rounding: float, low: float, high: float, metric: str
) -> tuple[str, str]:
    """Verdict on the paper's value: inside, or on which side of our interval."""
    if paper + rounding >= low and paper - rounding <= high:
        return REPRODUCED, "the paper's value lies in our interval"
    ours_higher = paper + rounding < low
    if ours_higher == (metric in HIGHER_IS_BETTER):
        return EXCEEDS, "ours is better than the paper's beyond the tolerance"
    return DIFFERS, "ours is worse than the paper's beyond the tolerance"


def _against_amount(
    values: np.ndarray, paper: float | None, rounding: float, tolerance: Tolerance
) -> tuple[bool, str]:
    assert tolerance.amount is not None
    if tolerance.rule == "at_most":
        return bool(np.all(values <= tolerance.amount)), f"all at most {tolerance.amount:g}"
    if tolerance.rule == "at_least":
        return bool(np.all(values >= tolerance.amount)), f"all at least {tolerance.amount:g}"
    assert paper is not None
    allowed = tolerance.amount + rounding
    close = np.abs(values - paper) <= allowed * (1 + 1e-12) + 1e-12
    words = "equal" if allowed == 0 else f"within {allowed:g}"
    return bool(np.all(close)), f"all {words} to the paper's value"


def _exact(
    values: np.ndarray, n: int, paper: float | None, rounding: float, tolerance: Tolerance
) -> Outcome:
    ok, words = _against_amount(values, paper, rounding, tolerance)
    ok = ok and values.size == n
    missing = f", but {n - values.size} of {n} runs failed" if values.size < n else ""
    return Outcome(
        holds(ok),
        f"{'' if ok or missing else 'not '}{words}{missing}",
        float(np.median(values)) if values.size else math.nan,
        float(values.min()) if values.size else math.nan,
        float(values.max()) if values.size else math.nan,
        n,
        int(values.size),
    )


def judge_runs(claim: Claim, tolerance: Tolerance, evidence: Evidence, images: str) -> Outcome:
    """Judge a metric over runs; ours is the median, as the interval is of single runs.

    A failed run counts as worse than all others in the median; where half or more failed there is
    none, and a number of the paper's is not met. The interval is over the runs that worked.
    """
    assert isinstance(claim.query, Runs)
    metric, paper = claim.query.metric, claim.paper_value
    found = runs(evidence, claim.query.where, metric, images)
    values, n = found.loc[found["ok"], "value"].to_numpy(), len(found)
    if tolerance.rule in ("absolute", "at_most", "at_least"):
        return _exact(values, n, paper, claim.rounding, tolerance)
    n_ok = int(values.size)
    failed = f"{n - n_ok} of {n} runs failed" if n_ok < n else ""
    if n_ok < 2:
        verdict = DIFFERS if failed else "not judged"
        ours = float(values[0]) if n_ok else math.nan
        return Outcome(verdict, failed or "scale: one run has no interval", ours, n=n, n_ok=n_ok)
    low, high = interval(values, metric, tolerance)
    worst = -math.inf if metric in HIGHER_IS_BETTER else math.inf
    every = np.concatenate([values, np.full(n - n_ok, worst)])
    ours = float(np.median(every)) if n_ok > n / 2 else math.nan
    if paper is None:
        return Outcome("", failed, ours, low, high, n, n_ok)
    if n_ok <= n / 2:
        return Outcome(DIFFERS, failed, ours, low, high, n, n_ok)
    verdict, words = _against_interval(paper, claim.rounding, low, high, metric)
    return Outcome(verdict, "; ".join(filter(None, [words, failed])), ours, low, high, n, n_ok)


def judge_column(claim: Claim, tolerance: Tolerance, evidence: Evidence) -> Outcome:
    """Judge a column of the security table: every value must be within the tolerance."""
    query = claim.query
    assert isinstance(query, Column)
    values = layer_values(evidence, query.column, query.where, query.total)
    return _exact(values, values.size, claim.paper_value, claim.rounding, tolerance)


def _side(side: Side, evidence: Evidence) -> np.ndarray:
    return layer_values(evidence, side.column, side.where, side.total)


def judge_columns(claim: Claim, evidence: Evidence) -> Outcome:
    """Judge deterministic comparisons; ours is the smallest gap, above 0 where all hold."""
    query = claim.query
    assert isinstance(query, Columns)
    gaps = []
    for pair in query.comparisons:
        gaps.append(float(_side(pair.more, evidence).min() - _side(pair.less, evidence).max()))
    right = sum(gap > 0 for gap in gaps)
    words = f"{right} of {len(gaps)} comparisons hold"
    return Outcome(holds(right == len(gaps)), words, min(gaps), n=len(gaps), n_ok=len(gaps))
