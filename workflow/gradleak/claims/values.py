"""Judging numbers: single draws and means against intervals, and exact values."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from gradleak.claims.evidence import Evidence, NotJudged, runs, table_values
from gradleak.claims.margin import check
from gradleak.claims.model import Claim, Tolerance
from gradleak.claims.outcome import DIFFERS, EXCEEDS, REPRODUCED, Outcome, holds
from gradleak.claims.queries import Column, Columns, Equal, Less, Loss, Runs
from gradleak.claims.statistics import bootstrap_mean, prediction_interval

DECIBEL = ("psnr", "psnr_255", "psnr_rmse", "psnr_scaled", "psnr_class_mean")
HIGHER_IS_BETTER = (*DECIBEL, "ssim", "ssim_gauss", "ssim_255", "r2", "label_correct", "count")
# Positive numbers that spread over orders of magnitude.
LOGARITHMIC = (
    "mse",
    "rmse_255",
    "mse_twin",
    "twin_error",
    "objective",
    "evaluations",
    "condition",
    "condition_padding",
)


def interval(values: np.ndarray, metric: str, tolerance: Tolerance) -> tuple[float, float]:
    """Make the interval that a tolerance of rule prediction, mean or factor allows."""
    if tolerance.rule == "factor":
        low = high = float(np.median(values))
    elif tolerance.rule == "mean":
        low, high = bootstrap_mean(values, tolerance.level)
    else:
        low, high = prediction_interval(values, metric in LOGARITHMIC, tolerance.level)
    margin = tolerance.margin
    if metric in DECIBEL:
        margin += 10 * math.log10(tolerance.factor)
        return low - margin, high + margin
    return low / tolerance.factor - margin, high * tolerance.factor + margin


def against_interval(
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


def exact(
    values: np.ndarray, n: int, paper: float | None, rounding: float, tolerance: Tolerance
) -> Outcome:
    """Judge values that must all be within an amount; `n` is how many were tried."""
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
    none, and a number of the paper's is not met. The interval is over the runs that worked. With
    rule ``mean`` ours is the arithmetic mean over images of the runs that worked.
    """
    query = claim.query
    assert isinstance(query, Runs)
    metric, paper = query.metric, claim.paper_value
    found = runs(evidence, query.where, metric, images, query.answers)
    if tolerance.rule == "mean":
        return _mean_of_images(claim, tolerance, found)
    if query.of == "seeds":
        found = _seed_means(found)
    values, n = found.loc[found["ok"], "value"].to_numpy(), len(found)
    if tolerance.rule in ("absolute", "at_most", "at_least"):
        return exact(values, n, paper, claim.rounding, tolerance)
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
    verdict, words = against_interval(paper, claim.rounding + claim.spread, low, high, metric)
    return Outcome(verdict, "; ".join(filter(None, [words, failed])), ours, low, high, n, n_ok)


def _seed_means(found: pd.DataFrame) -> pd.DataFrame:
    """One row a seed: the arithmetic mean of its runs; it failed if one of them did."""
    groups = found.groupby("seed")
    ok = groups["ok"].all()
    return pd.DataFrame({"value": groups["value"].mean().where(ok), "ok": ok}).reset_index()


def _mean_of_images(claim: Claim, tolerance: Tolerance, found: pd.DataFrame) -> Outcome:
    """Judge the mean over images, each the mean of its runs that worked."""
    assert isinstance(claim.query, Runs)
    metric, paper = claim.query.metric, claim.paper_value
    values = found[found["ok"]].groupby("index")["value"].mean().to_numpy()
    n, n_ok = len(found), int(found["ok"].sum())
    failed = f"{n - n_ok} of {n} runs failed and are not in the mean" if n_ok < n else ""
    if values.size < 2:
        verdict = DIFFERS if failed else "not judged"
        ours = float(values[0]) if values.size else math.nan
        return Outcome(verdict, failed or "scale: one image has no interval", ours, n=n, n_ok=n_ok)
    low, high = interval(values, metric, tolerance)
    ours = float(values.mean())
    if paper is None:
        return Outcome("", failed, ours, low, high, n, n_ok)
    if n_ok <= n / 2:
        return Outcome(DIFFERS, failed, ours, low, high, n, n_ok)
    verdict, words = against_interval(paper, claim.rounding + claim.spread, low, high, metric)
    words = f"{words}; standard error {values.std(ddof=1) / math.sqrt(values.size):.2g}"
    return Outcome(verdict, "; ".join(filter(None, [words, failed])), ours, low, high, n, n_ok)


def judge_column(claim: Claim, tolerance: Tolerance, evidence: Evidence) -> Outcome:
    """Judge a column of a table: every value within the tolerance, or one more draw."""
    query, paper = claim.query, claim.paper_value
    assert isinstance(query, Column)
    values = table_values(evidence, query)
    n = int(values.size)
    if tolerance.rule != "prediction":
        return exact(values, n, paper, claim.rounding, tolerance)
    ours = float(np.median(values))
    if n < 2:
        return Outcome("not judged", "scale: one value has no interval", ours, n=n, n_ok=n)
    low, high = interval(values, query.column, tolerance)
    if paper is None:
        return Outcome("", "", ours, low, high, n, n)
    slack = claim.rounding + claim.spread
    inside = paper + slack >= low and paper - slack <= high
    words = f"the paper's value {'lies' if inside else 'does not lie'} in our interval"
    return Outcome(holds(inside), words, ours, low, high, n, n)


def _gap(pair: Less | Equal, evidence: Evidence) -> float:
    """How clearly a comparison holds: above 0 where it does."""
    if isinstance(pair, Equal):
        one, other = (table_values(evidence, side) for side in (pair.one, pair.other))
        if one.size != other.size:
            raise NotJudged(f"data: {one.size} values of {pair.one.column} for {other.size}")
        return 0.5 - float(np.abs(one - other).max())
    less, more = (table_values(evidence, side) for side in (pair.less, pair.more))
    return float(more.min() - less.max())


def judge_columns(claim: Claim, evidence: Evidence) -> Outcome:
    """Judge deterministic comparisons; ours is the smallest gap, above 0 where all hold.

    Two equal integers have a gap of 0.5.
    """
    query = claim.query
    assert isinstance(query, Columns)
    gaps = [_gap(pair, evidence) for pair in query.comparisons]
    right = sum(gap > 0 for gap in gaps)
    words = f"{right} of {len(gaps)} comparisons hold"
    return Outcome(holds(right == len(gaps)), words, min(gaps), n=len(gaps), n_ok=len(gaps))


def judge_loss(claim: Claim, tolerance: Tolerance) -> Outcome:
    """Judge a fact about the losses themselves; ours is the number that tells."""
    query = claim.query
    assert isinstance(query, Loss) and tolerance.amount is not None
    wrong, number = check(query.fact, query.losses, tolerance.amount)
    words = f"holds for {', '.join(query.losses)}"
    if wrong:
        words = f"does not hold for {', '.join(wrong)}"
    n = len(query.losses)
    return Outcome(holds(not wrong), words, number, n=n, n_ok=n)
