"""Sentences about the sign of a rank correlation, over networks or over batches."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import Form
from gradleak.claims.forms.runs import by_batch, zero_for_missed
from gradleak.claims.metrics import worst
from gradleak.claims.outcome import NotJudged, Outcome, holds, joined
from gradleak.claims.statement import Closed, Statement, Tolerance, Where
from gradleak.claims.statistics import spearman

Sign = Literal["negative", "positive"]


def _signed(x: np.ndarray, y: np.ndarray, sign: Sign, alpha: float, over: str) -> Outcome:
    """Judge the sign of the correlation of x and y; its bootstrap interval must exclude 0."""
    rho, low, high = spearman(x, y, 1 - alpha)
    if math.isnan(rho):
        raise NotJudged(f"scale: {x.size} {over} give no rank correlation")
    ok = high < 0 if sign == "negative" else low > 0
    words = f"Spearman's correlation over {x.size} {over}, bootstrap interval"
    return Outcome(holds(ok), words, rho, low, high)


class Correlation(Form):
    """Spearman's correlation between two columns of the index table, one row per network."""

    form: Literal["correlation"]
    x: str
    y: str
    sign: Sign
    rules = ("alpha",)
    words = "Spearman's rank correlation over networks"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """See `_signed`; a point is a network."""
        x, y, n_ok = evidence.networks(self.x, self.y)
        made = _signed(x, y, self.sign, tolerance.alpha, "networks")
        return replace(made, n=int(x.size), n_ok=n_ok)


class Point(Closed):
    """Runs at one value of x."""

    x: float
    where: Where


class Trend(Form):
    """Spearman's correlation between x and the mean over a batch's images, batch by batch."""

    form: Literal["trend"]
    metric: str
    where: Where = Field(default_factory=dict)
    points: list[Point] = Field(min_length=4)
    sign: Sign
    missing: Literal["failed", "zero"] = "failed"
    rules = ("alpha",)
    words = "Spearman's rank correlation over batches"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge the sign of the rank correlation of x with the means of batches.

        The bootstrap resamples batches; a batch without any success counts as the worst.
        """
        xs: list[float] = []
        means: list[float] = []
        n, n_ok = 0, 0
        for point in self.points:
            found = evidence.runs({**self.where, **point.where}, self.metric)
            n, n_ok = n + len(found), n_ok + int(found["ok"].sum())
            found = zero_for_missed(found) if self.missing == "zero" else found
            means += by_batch(found, "mean").fillna(worst(self.metric)).tolist()
            xs += [point.x] * (len(means) - len(xs))
        lost = f"{n - n_ok} of {n} images have no value of their own" if n_ok < n else ""
        made = _signed(np.array(xs), np.array(means), self.sign, tolerance.alpha, "batches")
        return replace(made, reason=joined(made.reason, lost), n=n, n_ok=n_ok)
