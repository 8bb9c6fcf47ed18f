"""Judging comparisons of estimates, such as accuracies, by their standard errors."""

from __future__ import annotations

import math

from scipy import stats

from gradleak.claims.evidence import Evidence, describe, table_values
from gradleak.claims.model import Claim, Tolerance
from gradleak.claims.outcome import NOT_JUDGED, Outcome, holds
from gradleak.claims.queries import Estimates, Less, Side
from gradleak.errors import ConfigError

ERROR = "error"


def _estimate(side: Side, evidence: Evidence, claim: Claim) -> tuple[float, float]:
    """Value and standard error of the one row that a side names."""
    values = table_values(evidence, side)
    errors = table_values(evidence, side.model_copy(update={"column": ERROR}))
    if values.size != 1:
        raise ConfigError(
            f"claim '{claim.id}': table {side.table} has {values.size} rows for "
            f"{describe(side.where)}, and an estimate is one; name more in where."
        )
    return float(values[0]), float(errors[0])


def _difference(
    pair: Less, evidence: Evidence, claim: Claim, alpha: float
) -> tuple[float, float, float]:
    """`more` less `less`, with the 1 − alpha interval of a difference of independent estimates."""
    less, more = (_estimate(side, evidence, claim) for side in (pair.less, pair.more))
    half = float(stats.norm.ppf(1 - alpha / 2)) * math.hypot(less[1], more[1])
    gap = more[0] - less[0]
    return gap, gap - half, gap + half


def judge_estimates(claim: Claim, tolerance: Tolerance, evidence: Evidence) -> Outcome:
    """Judge comparisons of estimates; ours is the least clear difference, with its interval.

    A comparison holds where the whole interval of its difference lies above the amount (0 under
    rule ``alpha``), and fails where all of it lies below. Else the two are not told apart: then
    the claim is not judged, unless another comparison fails.
    """
    query = claim.query
    assert isinstance(query, Estimates)
    amount = tolerance.amount or 0.0
    found = [_difference(pair, evidence, claim, tolerance.alpha) for pair in query.comparisons]
    gap, low, high = min(found, key=lambda one: one[1])
    right = sum(one[1] > amount for one in found)
    wrong = sum(one[2] < amount for one in found)
    n = len(found)
    words = f"{right} of {n} comparisons hold beyond chance, {wrong} fail"
    if wrong or right == n:
        return Outcome(holds(not wrong), words, gap, low, high, n, n)
    return Outcome(
        NOT_JUDGED,
        f"scale: not told apart: {gap:.2f} from {low:.2f} to {high:.2f}; {words}",
        gap,
        low,
        high,
        n,
        n,
    )
