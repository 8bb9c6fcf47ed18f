"""A paper's tables beside our numbers, from its claims and our evidence."""

import math
from collections.abc import Mapping

import pandas as pd

from gradleak.claims.evaluate import OF_OUTCOME, Judge, Larger
from gradleak.claims.evidence import Evidence
from gradleak.claims.load import load
from gradleak.claims.model import Claims
from gradleak.claims.outcome import NOT_JUDGED, Outcome, failed, joined
from gradleak.errors import ConfigError
from gradleak.runtime import tidy


def table(
    claims: Claims,
    evidence: Evidence,
    name: str,
    images: str,
    scale: str,
    larger: Larger = (),
) -> pd.DataFrame:
    """One of the paper's tables, such as ``copa_table2``: a row per number, the paper's and ours.

    Rows that only we have (20 images) have an empty `paper`. They, ours beside a number of the
    paper's, and repetitions of one in another unit have no `verdict`, but a note. Raises
    `ConfigError` if no grid has that table.
    """
    rows, judge = [], Judge(claims, evidence, images, scale, larger)
    for claim in claims.claims:
        if claim.cell is None or claim.cell.table != name:
            continue
        outcome, paper = judge(claim), claim.paper_value
        note = ""
        if not claim.is_judged:
            note = "the same runs" if claim.repeats else "ours, beside the paper's number"
        if paper is None and not claim.printed:
            note = "not in the paper"
        rows.append(
            {key: getattr(claim.cell, key) for key in ("row", "column", "metric")}
            | {"paper": (claim.printed or math.nan) if paper is None else paper}
            | {key: getattr(outcome, key) for key in OF_OUTCOME}
            | {"images": images, "scale": outcome.scale}
            | {"verdict": outcome.verdict if claim.is_judged else ""}
            | {"note": joined(note, outcome.reason if claim.is_judged else _counted(outcome))}
        )
    if not rows:
        known = sorted({claim.cell.table for claim in claims.claims if claim.cell is not None})
        raise ConfigError(
            f"Table '{name}' has no grid in the claims of {claims.paper}; use one of "
            f"{', '.join(known) or '(none)'} or add a grid."
        )
    return pd.DataFrame(rows, columns=tidy.TABLES).astype({"n": "Int64", "n_ok": "Int64"})


def _counted(outcome: Outcome) -> str:
    """Reason of a number without verdict: why it is missing, or how many runs failed."""
    if outcome.verdict == NOT_JUDGED and math.isnan(outcome.ours):
        return outcome.reason
    if outcome.n is None or outcome.n_ok is None:
        return ""
    return failed(outcome.n, outcome.n_ok)


def make(files: tidy.Given, words: tidy.Given, case: Mapping[str, str]) -> pd.DataFrame:
    """Make the table ``name`` of `words` by the paper's ``claims`` and the available evidence."""
    given = {kind: files.get(kind, []) for kind in ("scores", "security", "rank", "tables")}
    run = case["images"], case["scale"]
    found = table(load(files["claims"]), Evidence.read(**given), words["name"], *run)
    return found[found["paper"].notna()]
