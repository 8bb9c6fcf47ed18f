"""A verdict for each claim."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from gradleak.claims import arithmetic, batches, estimates, orders, paper, values
from gradleak.claims.evidence import Evidence, NotJudged
from gradleak.claims.explanations import Explanations
from gradleak.claims.model import Claim, Claims
from gradleak.claims.outcome import NOT_JUDGED, REFUTED, Outcome, holds
from gradleak.claims.queries import Printed, Runs

COLUMNS = [
    "id",
    "paper",
    "locator",
    "kind",
    "statement",
    "paper_value",
    "ours",
    "low",
    "high",
    "n",
    "n_ok",
    "images",
    "scale",
    "verdict",
    "reason",
    "explanation",
]
SCALES = ("smoke", "laptop", "paper")


def _printed(claim: Claim, claims: Claims) -> Outcome:
    assert isinstance(claim.query, Printed)
    wrong, n = paper.psnr_mismatches(claims, claim.query.grid)
    words = f"{n - len(wrong)} of {n} cells agree"
    return Outcome(holds(not wrong), words, float(n - len(wrong)), n=n, n_ok=n)


def _from_evidence(claim: Claim, claims: Claims, evidence: Evidence, images: str) -> Outcome:
    """Ours and a verdict, before the claim's needs and the paper's own tables are looked at."""
    tolerance, query = claims.tolerances[claim.tolerance], claim.query
    try:
        if isinstance(query, Runs) and query.of == "batches":
            return batches.judge_batches(claim, tolerance, evidence, images)
        match query.form:
            case "runs":
                return values.judge_runs(claim, tolerance, evidence, images)
            case "column":
                return values.judge_column(claim, tolerance, evidence)
            case "columns":
                return values.judge_columns(claim, evidence)
            case "estimates":
                return estimates.judge_estimates(claim, tolerance, evidence)
            case "compare":
                return orders.judge_compare(claim, tolerance, evidence, images)
            case "close":
                return orders.judge_close(claim, tolerance, evidence, images)
            case "limit":
                return orders.judge_limit(claim, tolerance, evidence, images)
            case "share":
                return orders.judge_share(claim, tolerance, evidence, images)
            case "correlation":
                return orders.judge_correlation(claim, tolerance, evidence)
            case "trend":
                return batches.judge_trend(claim, tolerance, evidence, images)
            case "effect":
                return orders.judge_effect(claim, tolerance, evidence, images)
            case "printed":
                return _printed(claim, claims)
            case "arithmetic":
                return arithmetic.judge_arithmetic(claim, claims)
            case "range":
                return arithmetic.judge_range(claim, tolerance, claims)
            case "loss":
                return values.judge_loss(claim, tolerance)
            case "elsewhere":
                raise NotJudged(query.reason)
    except NotJudged as reason:
        return Outcome(NOT_JUDGED, str(reason))


def _unmet(claim: Claim, images: str, scale: str) -> str:
    """Say what the claim needs and this run does not have; empty where nothing is missing."""
    if claim.needs.images == "real" and images != "real":
        return "data: the paper's value depends on its images, and these are the embedded ones"
    if SCALES.index(scale) < SCALES.index(claim.needs.scale):
        return f"scale: needs at least {claim.needs.scale}, this is {scale}"
    return ""


def judge(claim: Claim, claims: Claims, evidence: Evidence, images: str, scale: str) -> Outcome:
    """Judge one claim.

    A sentence that the paper's own table contradicts is refuted whatever ours says (ours stands
    beside it), unless it is our own stricter reading; a claim whose needs are
    not met is not judged, and ours stands beside that too.

    Raises
    ------
    ArtifactError
        If the evidence is malformed (a run there twice, text for a number).
    ValueError
        If `scale` or `images` is not one of the allowed words.
    """
    if scale not in SCALES or images not in ("embedded", "real"):
        raise ValueError(f"images {images!r}, scale {scale!r}: use embedded or real, {SCALES}.")
    outcome = _from_evidence(claim, claims, evidence, images)
    unmet = _unmet(claim, images, scale)
    if unmet and outcome.verdict and outcome.verdict != NOT_JUDGED:
        outcome = replace(outcome, verdict=NOT_JUDGED, reason=unmet)
    against = paper.contradictions(claim, claims)
    if not against:
        return outcome
    ours = f"ours: {outcome.verdict} ({outcome.reason})"
    whose = "the paper itself" if claim.contradicted_by else "the paper's own table"
    return replace(outcome, verdict=REFUTED, reason=f"{whose}: {' | '.join(against)}; {ours}")


def _row(
    claim: Claim, outcome: Outcome, images: str, scale: str, why: Explanations | None
) -> dict[str, Any]:
    return {
        "id": claim.id,
        "paper": claim.paper,
        "locator": claim.locator,
        "kind": claim.kind,
        "statement": claim.statement,
        "paper_value": math.nan if claim.paper_value is None else claim.paper_value,
        "ours": outcome.ours,
        "low": outcome.low,
        "high": outcome.high,
        "n": outcome.n,
        "n_ok": outcome.n_ok,
        "images": images,
        "scale": scale,
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "explanation": why.text(claim.id, outcome.verdict, images, scale) if why else "",
    }


def evaluate(
    claims: Claims,
    evidence: Evidence,
    images: str,
    scale: str,
    explanations: Explanations | None = None,
) -> pd.DataFrame:
    """Judge every number and sentence of a claims file.

    Parameters
    ----------
    claims
        As `load` gives them.
    evidence
        Our results; what is missing makes claims "not judged", with the reason.
    images
        ``embedded`` or ``real``: which runs are looked at.
    scale
        ``smoke``, ``laptop`` or ``paper``.
    explanations
        Of claims that failed, as `load_explanations` gives them.

    Returns
    -------
    pandas.DataFrame
        One row per claim in the file's order; `n` and `n_ok` are nullable integers. An
        explanation stands only beside a claim that failed in such a run as it was written for, or
        in any if it says so.

    Raises
    ------
    ArtifactError
        If the evidence is malformed.
    """
    rows = [
        _row(claim, judge(claim, claims, evidence, images, scale), images, scale, explanations)
        for claim in claims.numbers()
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype({"n": "Int64", "n_ok": "Int64"})
