"""Judging what a batch comes to: the mean or the best of its images, or how many are good."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from gradleak.claims.evidence import Evidence, NotJudged, runs
from gradleak.claims.model import Claim, Tolerance
from gradleak.claims.outcome import DIFFERS, NOT_JUDGED, Outcome, holds
from gradleak.claims.queries import Runs, Trend
from gradleak.claims.statistics import spearman
from gradleak.claims.values import HIGHER_IS_BETTER, against_interval, exact, interval

BATCH = ["model", "seed", "batch"]


def by_batch(found: pd.DataFrame, take: str, over: float | None = None) -> pd.Series:
    """One value a batch, NaN where none of its images has one.

    Parameters
    ----------
    found
        Runs, as `gradleak.claims.evidence.runs` gives them.
    take
        ``mean`` or ``max`` over the images that have a value, or how many of all are ``above``.
    over
        What counts as above, itself included.
    """
    groups = found.groupby(BATCH)["value"]
    if take == "mean":
        return groups.mean()
    if take == "max":
        return groups.max()
    assert over is not None
    tried = (found["ok"] | found["missed"]).groupby([found[key] for key in BATCH]).any()
    above = (found["value"] >= over).groupby([found[key] for key in BATCH]).sum()
    return above.where(tried).astype(float)


def _lost(found: pd.DataFrame, zero: bool) -> str:
    """Say how many images have no value of their own."""
    n, missed = len(found), int(found["missed"].sum())
    failed = n - int(found["ok"].sum()) - missed
    words = "count as 0" if zero else "are left out"
    said = [f"{missed} of {n} images were missed and {words}"] if missed else []
    return "; ".join([*said, *([f"{failed} of {n} runs failed"] if failed else [])])


def judge_batches(claim: Claim, tolerance: Tolerance, evidence: Evidence, images: str) -> Outcome:
    """Judge values of batches; ours is their mean, `n` and `n_ok` count images.

    A single batch has an interval only for the mean over its images under rule ``mean``, and
    nothing but its own value under ``factor``.
    """
    query = claim.query
    assert isinstance(query, Runs) and query.take is not None
    found = runs(evidence, query.where, query.metric, images, query.answers)
    zero = query.missing == "zero"
    n, n_ok, lost = len(found), int(found["ok"].sum()), _lost(found, zero)
    if zero:
        found = found.assign(value=found["value"].mask(found["missed"], 0.0))
    every = by_batch(found, query.take, query.over)
    values = every.dropna().to_numpy()
    ours = float(values.mean()) if values.size else math.nan
    if tolerance.rule in ("absolute", "at_most", "at_least"):
        judged = exact(values, len(every), claim.paper_value, claim.rounding, tolerance)
        words = "; ".join(filter(None, [f"{judged.reason} ({_batches(len(every))})", lost]))
        return replace(judged, reason=words, ours=ours, n=n, n_ok=n_ok)
    found = found[found["value"].notna()]
    if len(found) <= n / 2:
        return Outcome(DIFFERS, lost, ours, n=n, n_ok=n_ok)
    one = found["value"].to_numpy() if values.size == 1 and query.take == "mean" else values
    if tolerance.rule == "factor":
        one = np.array([ours])
    elif one.size < 2 or (values.size == 1 and tolerance.rule != "mean"):
        words = "; ".join(filter(None, ["scale: one batch has no interval", lost]))
        return Outcome(NOT_JUDGED, words, ours, n=n, n_ok=n_ok)
    low, high = interval(one, query.metric, tolerance)
    if claim.paper_value is None:
        return Outcome("", lost, ours, low, high, n, n_ok)
    slack = claim.rounding + claim.spread
    verdict, words = against_interval(claim.paper_value, slack, low, high, query.metric)
    words = "; ".join(filter(None, [f"{words} ({_batches(len(values))})", lost]))
    return Outcome(verdict, words, ours, low, high, n, n_ok)


def _batches(count: int) -> str:
    return "one batch" if count == 1 else f"{count} batches"


def judge_trend(claim: Claim, tolerance: Tolerance, evidence: Evidence, images: str) -> Outcome:
    """Judge the sign of the rank correlation of x with the means of batches.

    Batches are drawn for the bootstrap; one that failed altogether counts as the worst.
    """
    query = claim.query
    assert isinstance(query, Trend)
    worst = -math.inf if query.metric in HIGHER_IS_BETTER else math.inf
    xs: list[float] = []
    means: list[float] = []
    n, n_ok = 0, 0
    for point in query.points:
        found = runs(evidence, {**query.where, **point.where}, query.metric, images)
        n, n_ok = n + len(found), n_ok + int(found["ok"].sum())
        if query.missing == "zero":
            found = found.assign(value=found["value"].mask(found["missed"], 0.0))
        values = by_batch(found, "mean").fillna(worst)
        xs += [point.x] * len(values)
        means += values.tolist()
    rho, low, high = spearman(np.array(xs), np.array(means), 1 - tolerance.alpha)
    if math.isnan(rho):
        raise NotJudged(f"scale: {len(xs)} batches give no rank correlation")
    ok = high < 0 if query.sign == "negative" else low > 0
    words = f"Spearman's correlation over {len(xs)} batches, bootstrap interval"
    if n_ok < n:
        words += f"; {n - n_ok} of {n} images have no value of their own"
    return Outcome(holds(ok), words, rho, low, high, n, n_ok)
