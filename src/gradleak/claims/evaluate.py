"""Evaluate all claims of a file, by our results and by the paper's own tables."""

from dataclasses import replace

import pandas as pd

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms import Column, Runs
from gradleak.claims.load import Explanations
from gradleak.claims.model import Claim, Claims
from gradleak.claims.outcome import NOT_JUDGED, REFUTED, NotJudged, Outcome
from gradleak.claims.printed import Printed, column_key, texts

OF_CLAIM = ["id", "paper", "locator", "kind", "statement", "paper_value"]
OF_OUTCOME = ["ours", "low", "high", "n", "n_ok"]
COLUMNS = [*OF_CLAIM, *OF_OUTCOME, "images", "scale", "verdict", "reason", "explanation"]
SCALES = ("smoke", "laptop", "paper")
# Printed numbers correspond to runs: each image has one.
PLACE = {"model": "", "seed": "0", "batch": "0", "index": "", "answer": "0"}


def printed_runs(claims: Claims) -> pd.DataFrame:
    """Printed values of the paper: a row per cell with its selection, `metric`, `value` and `text`.

    Cells about a batch as a whole (such as its best image) are left out. ``index`` is the image of
    a cell; means over images have none.
    """
    rows = []
    for claim in claims.claims:
        query, cell = claim.query, claim.cell
        if cell and claim.is_printed and isinstance(query, Runs) and query.of != "batches":
            text = f"{cell.row}, {cell.column}: {claim.shown}"
            where = {key: " or ".join(wanted) for key, wanted in texts(query.where).items()}
            number = {"metric": query.metric, "value": claim.paper_value, "text": text, "ok": True}
            rows.append({**PLACE, "index": where.get("name", ""), **where, **number})
    frame = pd.DataFrame(rows, columns=None if rows else [*PLACE, "metric", "value", "text", "ok"])
    return frame.astype({"value": float, "ok": bool})


def printed(claims: Claims) -> Printed:
    """Return all printed numbers of a paper as evidence."""
    numbers = [claim for claim in claims.claims if claim.is_printed]
    columns: dict[str, Claim] = {}
    for claim in numbers:
        if isinstance(claim.query, Column):
            columns.setdefault(column_key(claim.query), claim)
    return Printed(scores=printed_runs(claims), numbers=tuple(numbers), columns=dict(columns))


class Judge:
    """Judges claims of one file by our results and by the paper's own numbers.

    A sentence contradicted by the paper's own table is refuted whatever our results (shown beside
    it), unless it is our stricter reading. A claim whose requirements are not met is not judged,
    and our number is shown too.

    Raises `ArtifactError` if the evidence is malformed (a duplicated run, text for a number).
    """

    def __init__(self, claims: Claims, evidence: Evidence, images: str, scale: str) -> None:
        if scale not in SCALES or images not in ("embedded", "real"):
            raise ValueError(f"images {images!r}, scale {scale!r}: use embedded or real, {SCALES}.")
        self.claims, self.evidence = claims, evidence.on(images)
        self.printed = printed(claims)
        self.images, self.scale = images, scale

    def __call__(self, claim: Claim) -> Outcome:
        """Judge one claim."""
        tolerance = self.claims.tolerances[claim.tolerance]
        evidence = self.printed if claim.query.asks == "paper" else self.evidence
        try:
            outcome = claim.query.judge(claim, tolerance, evidence)
        except NotJudged as reason:
            outcome = Outcome(NOT_JUDGED, str(reason))
        unmet = self._unmet(claim)
        if unmet and outcome.verdict and outcome.verdict != NOT_JUDGED:
            outcome = replace(outcome, verdict=NOT_JUDGED, reason=unmet)
        against = self.contradictions(claim)
        if not against:
            return outcome
        ours = f"ours: {outcome.verdict} ({outcome.reason})"
        whose = "the paper itself" if claim.contradicted_by else "the paper's own table"
        return replace(outcome, verdict=REFUTED, reason=f"{whose}: {' | '.join(against)}; {ours}")

    def _unmet(self, claim: Claim) -> str:
        """Name the requirement of a claim that this run does not meet; empty if it meets all."""
        if claim.needs.images == "real" and self.images != "real":
            return "data: the paper's value depends on its images, and these are the embedded ones"
        if SCALES.index(self.scale) < SCALES.index(claim.needs.scale):
            return f"scale: needs at least {claim.needs.scale}, this is {self.scale}"
        return ""

    def contradictions(self, claim: Claim) -> tuple[str, ...]:
        """Return the paper's own numbers that contradict a sentence, in words.

        Our stricter readings, and sentences about runs outside the tables, are never contradicted.
        """
        if claim.reading == "ours":
            return ()
        if claim.contradicted_by:
            return (claim.contradicted_by,)
        if claim.cell is not None or claim.apart or claim.query.asks == "ours":
            return ()
        tolerance = self.claims.tolerances[claim.tolerance]
        return claim.query.judge(claim, tolerance, self.printed).against


def evaluate(
    claims: Claims,
    evidence: Evidence,
    images: str,
    scale: str,
    explanations: Explanations | None = None,
) -> pd.DataFrame:
    """Judge every number and sentence of a claims file: one row each, in the file's order.

    Missing results make claims "not judged", with the reason. `images` is ``embedded`` or ``real``,
    `scale` is ``smoke``, ``laptop`` or ``paper``. `explanations` are shown for claims that failed
    in the run they were written for, or in any run if so marked. Raises `ArtifactError` if the
    evidence is malformed.
    """
    judge, rows = Judge(claims, evidence, images, scale), []
    for claim in claims.numbers():
        outcome = judge(claim)
        verdict = outcome.verdict
        why = explanations.text(claim.id, verdict, images, scale) if explanations else ""
        ours = (getattr(outcome, key) for key in OF_OUTCOME)
        said = (getattr(claim, key) for key in OF_CLAIM)
        rows.append([*said, *ours, images, scale, verdict, outcome.reason, why])
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype({"paper_value": float, "n": "Int64", "n_ok": "Int64"})
