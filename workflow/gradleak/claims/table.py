"""The paper's tables with our numbers beside, from the same claims and evidence."""

from __future__ import annotations

import math

import pandas as pd

from gradleak import columns
from gradleak.claims.evaluate import judge
from gradleak.claims.evidence import Evidence
from gradleak.claims.model import Claim, Claims
from gradleak.errors import ConfigError


def table(claims: Claims, evidence: Evidence, name: str, images: str, scale: str) -> pd.DataFrame:
    """One of the paper's tables: a row per number, the paper's value and ours.

    Rows that only we have (20 images) have an empty `paper` and `verdict`; those beside a number
    of the paper's have both, and a note.

    Parameters
    ----------
    claims, evidence, images, scale
        As for `evaluate`.
    name
        Such as ``copa_table2``.

    Raises
    ------
    ConfigError
        If the claims file has no grid for that table.
    ArtifactError
        If the evidence is malformed.
    """
    rows = []
    for claim in claims.claims:
        if claim.cell is None or claim.cell.table != name:
            continue
        outcome = judge(claim, claims, evidence, images, scale)
        rows.append(
            {
                "row": claim.cell.row,
                "column": claim.cell.column,
                "metric": claim.cell.metric,
                "paper": _paper(claim),
                "ours": outcome.ours,
                "low": outcome.low,
                "high": outcome.high,
                "n": outcome.n,
                "n_ok": outcome.n_ok,
                "images": images,
                "scale": scale,
                "verdict": outcome.verdict if claim.is_number else "",
                "note": "; ".join(filter(None, [_ours(claim), outcome.reason])),
            }
        )
    if not rows:
        known = sorted({claim.cell.table for claim in claims.claims if claim.cell is not None})
        raise ConfigError(
            f"Table '{name}' has no grid in the claims of {claims.paper}; use one of "
            f"{', '.join(known) or '(none)'} or add a grid."
        )
    return pd.DataFrame(rows, columns=columns.TABLES).astype({"n": "Int64", "n_ok": "Int64"})


def _paper(claim: Claim) -> float | str:
    """What the paper's cell holds, words as they are."""
    if claim.paper_value is None:
        return claim.printed or math.nan
    return claim.paper_value


def _ours(claim: Claim) -> str:
    """Say of a cell that is not the paper's."""
    if not claim.is_number:
        return "not in the paper"
    return "ours, beside the paper's number" if claim.reading == "ours" else ""
