"""Evaluate all claims of a file, by our results and by the paper's own tables."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms import Column, Runs
from gradleak.claims.forms.base import PAPER
from gradleak.claims.load import EXPLAINED, Explanations
from gradleak.claims.model import DEFINITION, Claim, Claims, Needs, Sentence
from gradleak.claims.outcome import (
    BY_DEFINITION,
    DIFFERS,
    EXCEEDS,
    MISSING,
    NOT_JUDGED,
    NOT_TOLD_APART,
    REFUTED,
    REPRODUCED,
    NotJudged,
    Outcome,
    joined,
)  # fmt: skip
from gradleak.claims.power import ONE_DRAW, TOO_WIDE, closeness
from gradleak.claims.printed import Printed, column_key, texts
from gradleak.claims.sentences import Part, combined
from gradleak.claims.statement import Tolerance
from gradleak.claims.statistics import adjusted, against_words, floored
from gradleak.settings.fields import SCALES

OF_CLAIM = ["id", "paper", "whose", "locator", "kind", "statement", "paper_value"]
PART_OF = "part_of"  # column with the sentence that a row is a part of
OF_OUTCOME = ["ours", "low", "high", "n", "n_ok"]
COLUMNS = [
    *OF_CLAIM, *OF_OUTCOME, "window", "closeness", "p", "holm", "images", "scale", "verdict",
    "reason", "evidence", "explanation", PART_OF,
]  # fmt: skip
TESTED = (REPRODUCED, DIFFERS, NOT_TOLD_APART)
OF_NUMBERS = (*TESTED, EXCEEDS)
RANDOM = ("value", "order")  # kinds of claims about what another run would give otherwise
NOTHING = "nothing"  # begins the reason of an agreement of searches that found nothing
OPEN = (TOO_WIDE, ONE_DRAW)  # begin reasons of what was measured, but shows nothing
# Evidence with its scale.
Larger = Sequence[tuple[Evidence, str]]
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

    `larger` is evidence at larger scales, the largest first, which may cover a part of the claims:
    each is judged by the first that has all that it reads, at one scale.

    Raises `ArtifactError` if the evidence is malformed (a duplicated run, text for a number).
    """

    def __init__(
        self,
        claims: Claims,
        evidence: Evidence,
        images: str,
        scale: str,
        larger: Larger = (),
    ) -> None:
        if scale not in SCALES or images not in ("embedded", "real"):
            raise ValueError(f"images {images!r}, scale {scale!r}: use embedded or real, {SCALES}.")
        self.claims, self.evidence = claims, evidence.on(images)
        self._larger = [(one.on(images), own) for one, own in larger]
        self.by_id = {claim.id: claim for claim in claims.claims}
        self.printed = printed(claims)
        self.images, self.scale = images, scale

    def __call__(self, claim: Claim) -> Outcome:
        """Judge one claim."""
        outcome = self._asked(claim)
        unmet = self._unmet(claim.needs, outcome.scale) or self._nothing(claim, outcome)
        judged = outcome.verdict != NOT_JUDGED or outcome.reason.startswith(OPEN)
        side = {REPRODUCED: claim.to_hold, DIFFERS: claim.to_fail}.get(outcome.verdict)
        if unmet and outcome.verdict and judged:
            outcome = replace(outcome, verdict=NOT_JUDGED, reason=unmet)
        elif side and (beyond := self._unmet(side, outcome.scale)):
            outcome = replace(outcome, verdict=NOT_JUDGED, reason=beyond, one_sided=True)
        outcome = _decided(_of_kind(claim, outcome))
        against = self.contradictions(claim)
        if not against:
            return outcome
        ours = f"ours: {outcome.verdict} ({outcome.reason})"
        whose = "the paper itself" if claim.contradicted_by else "the paper's own table"
        return replace(outcome, verdict=REFUTED, reason=f"{whose}: {' | '.join(against)}; {ours}")

    def _asked(self, claim: Claim) -> Outcome:
        """Answer of the claim's query, by the largest runs that have one."""
        tolerance = self.claims.tolerances[claim.tolerance]
        alone = claim.query.asks == "paper"
        runs: list[tuple[Evidence, str]] = [(self.printed if alone else self.evidence, self.scale)]
        # Formulas and the paper's numbers are of no scale.
        if not alone and any(name != PAPER and "." not in name for name in claim.query.found_in()):
            runs = [*self._larger, *runs]
        for evidence, scale in runs:
            try:
                outcome = claim.query.judge(claim, tolerance, evidence)
            except NotJudged as reason:
                outcome = Outcome(NOT_JUDGED, str(reason))
            outcome = replace(outcome, scale=scale)
            if not outcome.reason.startswith(f"{MISSING}:"):
                break
        return outcome

    def _unmet(self, needs: Needs, scale: str) -> str:
        """Name the requirement that runs of a scale do not meet; empty if they meet all."""
        if needs.images == "real" and self.images != "real":
            return (
                f"{MISSING}: the paper's value depends on its images, and these are the embedded "
                "ones"
            )
        if SCALES.index(scale) < SCALES.index(needs.scale):
            words = f"scale: needs at least {needs.scale}, this is {scale}"
            return words + (f": {needs.why}" if needs.why else "")
        return ""

    def _nothing(self, claim: Claim, outcome: Outcome) -> str:
        """Say that neither the paper nor we found anything, by this number or by one beside it."""
        if claim.nothing_as:
            beside = self(self.by_id[claim.nothing_as])
            return beside.reason if beside.reason.startswith(NOTHING) else ""
        return _nothing(claim, outcome)

    def contradictions(self, claim: Claim) -> tuple[str, ...]:
        """Return the paper's own numbers that contradict a sentence, in words.

        Our stricter readings, and sentences about runs outside the tables, are never contradicted.
        """
        if claim.whose == "ours":
            return ()
        if claim.contradicted_by:
            return (claim.contradicted_by,)
        if claim.cell is not None or claim.apart or claim.query.asks == "ours":
            return ()
        tolerance = self.claims.tolerances[claim.tolerance]
        return claim.query.judge(claim, tolerance, self.printed).against


def _nothing(claim: Claim, outcome: Outcome) -> str:
    """Say that neither the paper nor we found anything, so that agreement says nothing."""
    for limit in claim.nothing:
        if claim.paper_value is None or not limit.includes(claim.value):
            continue
        if math.isnan(outcome.ours) or limit.includes(outcome.ours):
            return f"{NOTHING}: neither the paper's search nor ours found anything; {limit.reason}"
    return ""


def _of_kind(claim: Claim, outcome: Outcome) -> Outcome:
    """Verdict by kind: a definition that holds is one, and one draw shows nothing random."""
    if claim.kind == DEFINITION and outcome.verdict == REPRODUCED:
        return replace(outcome, verdict=BY_DEFINITION)
    drawn = outcome.n if outcome.units is None else outcome.units
    random = claim.kind in RANDOM and claim.query.asks != "paper"
    if not random or drawn != 1 or outcome.verdict not in OF_NUMBERS:
        return outcome
    alone, more = "a single value has no spread", "two or more runs would give an interval"
    if claim.kind == "order":
        alone, more = "an order of single values, without a test", ""
    words = joined(f"{ONE_DRAW}: {alone}", outcome.reason, more)
    return replace(outcome, verdict=NOT_JUDGED, reason=words)


def _decided(outcome: Outcome) -> Outcome:
    """Add the p-value that a failed test is decided by, that of the opposite (column ``p``)."""
    if outcome.verdict != DIFFERS or math.isnan(outcome.p_against):
        return outcome
    return replace(outcome, reason=joined(outcome.reason, against_words(outcome.p_against)))


def _row(claim: Claim, outcome: Outcome, tolerance: Tolerance) -> dict[str, object]:
    """Columns of claims.csv that need no other claim."""
    query = claim.query
    metric = str(getattr(query, "metric", None) or getattr(query, "column", ""))
    near = closeness(claim, outcome.ours, metric) if claim.whose == "paper" else ""
    row = {key: getattr(claim, key) for key in OF_CLAIM}
    row |= {key: getattr(outcome, key) for key in OF_OUTCOME}
    row |= {"window": outcome.window or query.window(claim, tolerance), "closeness": near}
    row |= _p_values(outcome, query.sided)
    row |= {"verdict": outcome.verdict, "reason": outcome.reason, "scale": outcome.scale}
    part_of = claim.sentence.id if claim.sentence else ""
    read = query.found_in() or ([PAPER] if claim.contradicted_by else [])
    return row | {"evidence": ", ".join(read), PART_OF: part_of}


def _p_values(outcome: Outcome, sided: int) -> dict[str, float]:
    # Of the side that the verdict is on; the smaller where it is on none.
    p = min(outcome.p, outcome.p_against) if outcome.verdict in TESTED else math.nan
    p = floored(p)
    # Both sides were asked, which Holm's method has to count.
    return {"p": p, "holm": p if math.isnan(p) else min(1.0, p * 2 / sided)}


def _sentence_row(sentence: Sentence, parts: list[Part], rows: list[dict]) -> dict[str, object]:
    """Row of a sentence, from its parts and their rows."""
    outcome, first = combined(sentence, parts), parts[0].claim
    row = {key: getattr(first, key) for key in OF_CLAIM}
    row |= {"id": sentence.id, "statement": sentence.statement, "paper_value": None}
    row |= {key: getattr(outcome, key) for key in OF_OUTCOME}
    row |= {key: _each(own[key] for own in rows) for key in ("window", "evidence")}
    row |= {"scale": min((str(own["scale"]) for own in rows), key=SCALES.index)}
    row |= _p_values(outcome, max(part.claim.query.sided for part in parts))
    return row | {"verdict": outcome.verdict, "reason": outcome.reason, PART_OF: ""}


def _each(texts: Iterable[Any]) -> str:
    """Texts of parts in their order, each once."""
    return ", ".join(dict.fromkeys(one for text in texts for one in str(text).split(", ") if one))


def _with_holm(frame: pd.DataFrame) -> pd.DataFrame:
    """Adjust two-sided p-values by Holm's method, over the paper's claims and over ours.

    A sentence is one test, so that those of its parts are left as they are.
    """
    tests = frame[frame["p"].notna() & (frame[PART_OF] == "")]
    for _, own in tests.groupby("whose"):
        frame.loc[own.index, "holm"] = adjusted(own["holm"].to_numpy())
    frame.loc[frame[PART_OF] != "", "holm"] = math.nan
    return frame


def evaluate(
    claims: Claims,
    evidence: Evidence,
    images: str,
    scale: str,
    explanations: Explanations | None = None,
    larger: Larger = (),
) -> pd.DataFrame:
    """Judge every number and sentence of a claims file: one row each, in the file's order.

    ``whose`` tells the paper's own claims from ours. A sentence with several parts has one row,
    followed by a row for each of its parts, which name it in ``part_of``. ``p`` is the p-value of
    a test in the direction of its verdict and ``holm`` the same, adjusted for the number of tests.
    ``window`` is what would have agreed, ``closeness`` how near our number is, ``evidence`` what
    was read.

    Missing results make claims "not judged", with the reason. `images` is ``embedded`` or ``real``,
    `scale` one of `gradleak.settings.fields.SCALES`, and of `larger` runs (see `Judge`) each row
    names its own. `explanations` are shown for claims that failed in the run they were written for,
    or in any run if so marked. Raises `ArtifactError` if the evidence is malformed.
    """
    judge = Judge(claims, evidence, images, scale, larger)
    groups: dict[str, list[Claim]] = {}  # parts of a sentence, or a claim alone
    for claim in claims.judged():
        groups.setdefault(claim.sentence.id if claim.sentence else claim.id, []).append(claim)
    rows: list[dict[str, Any]] = []
    for group in groups.values():
        tolerances = [claims.tolerances[claim.tolerance] for claim in group]
        outcomes = [judge(claim) for claim in group]
        own = [_row(*each) for each in zip(group, outcomes, tolerances, strict=True)]
        for row in own:
            told = (str(row["id"]), str(row["verdict"]), images, str(row["scale"]))
            row["explanation"] = explanations.text(*told) if explanations else ""
        if sentence := group[0].sentence:
            made = zip(group, outcomes, (one.alpha for one in tolerances), strict=True)
            whole = _sentence_row(sentence, [Part(*each) for each in made], own)
            failed = whole["verdict"] in EXPLAINED
            why = dict.fromkeys(str(row["explanation"]) for row in own if row["explanation"])
            own.insert(0, {**whole, "explanation": " ".join(why) if failed else ""})
        rows += own
    frame = pd.DataFrame(rows, columns=COLUMNS).assign(images=images)
    frame = frame.astype({"paper_value": float, "p": float, "holm": float})
    return _with_holm(frame.astype({"n": "Int64", "n_ok": "Int64"}))
