"""Verdicts on sentences that are about several networks, data sets or attacks: one for each.

A sentence such as "the lock costs no accuracy" is tested in parts, one for each network, and its
verdict follows from theirs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.claims.model import Claim, Sentence
from gradleak.claims.outcome import (
    BY_DEFINITION,
    DIFFERS,
    EXCEEDS,
    NOT_JUDGED,
    NOT_TOLD_APART,
    REFUTED,
    REPRODUCED,
    Outcome,
    joined,
)  # fmt: skip
from gradleak.claims.statistics import against_words, simes

HOLD = (REPRODUCED, EXCEEDS, BY_DEFINITION)
# Most decisive first: one counterexample is enough against all, and one open part leaves it open.
ORDER = (REFUTED, DIFFERS, NOT_TOLD_APART, NOT_JUDGED, REPRODUCED, EXCEEDS, BY_DEFINITION)


@dataclass(frozen=True)
class Part:
    """A part of a sentence with its outcome, and the level of its test."""

    claim: Claim
    outcome: Outcome
    alpha: float

    @property
    def tested(self) -> bool:
        """True if there is a test, which was or would have been judged on the other side."""
        decided = self.outcome.verdict in (REPRODUCED, DIFFERS, NOT_TOLD_APART)
        return (decided or self.outcome.one_sided) and not math.isnan(self.outcome.p)


def combined(sentence: Sentence, parts: Sequence[Part]) -> Outcome:
    """Judge a sentence by its parts.

    All must hold; where the sentence says ``most``, more than half. That tests contradict it counts
    if they do so together, by Simes' p-value. `n` counts parts and `n_ok` those that are judged;
    the p-value of a sentence that holds is the largest of its parts'. ``most`` has none.
    """
    tests = [part for part in parts if part.tested]
    against = simes([part.outcome.p_against for part in tests])
    alone = bool(tests) and against >= max(part.alpha for part in tests)
    verdicts = [part.outcome.verdict for part in parts]
    # What differs by itself, but not together, is open.
    counted = [
        NOT_TOLD_APART if alone and part.tested and part.outcome.verdict == DIFFERS else verdict
        for part, verdict in zip(parts, verdicts, strict=True)
    ]
    most = sentence.holds == "most"
    verdict = _of_most(counted) if most else _of_all(counted)
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in ORDER if name in verdicts)
    lone = verdict == NOT_TOLD_APART and counted != verdicts
    n, n_ok = len(parts), len(parts) - verdicts.count(NOT_JUDGED)
    failed = not alone and any(part.outcome.verdict == DIFFERS for part in tests)
    p, p_against = (math.nan, math.nan) if most else _p_values(verdict, tests, against, failed)
    decided = p_against if verdict == DIFFERS else math.nan
    words = joined(
        f"of {len(parts)} parts: {counts}",
        f"together {against_words(against)}" if lone or not math.isnan(decided) else "",
        _example(DIFFERS if lone else verdict, parts, verdicts if lone else counted),
    )
    return Outcome(verdict, words, n=n, n_ok=n_ok, p=p, p_against=p_against)


def _p_values(
    verdict: str, tests: Sequence[Part], against: float, failed: bool
) -> tuple[float, float]:
    """P-values of the sentence and of its opposite; 1 on the side that the verdict is not on.

    A sentence has none if it differs by what is not a test, unless tests `failed` together too.
    """
    holds = max((part.outcome.p for part in tests), default=math.nan)
    if verdict == REPRODUCED and tests:
        return holds, 1.0
    if verdict == DIFFERS:
        return (1.0, against) if failed else (math.nan, math.nan)
    return holds, against


def _of_all(verdicts: Sequence[str]) -> str:
    first = next(name for name in ORDER if name in verdicts)
    return first if first != EXCEEDS else REPRODUCED


def _of_most(verdicts: Sequence[str]) -> str:
    """Verdict that more than half of the parts share; else open, for want of runs or of power."""
    half = len(verdicts) / 2
    if sum(name in HOLD for name in verdicts) > half:
        return REPRODUCED
    for against in ((REFUTED,), (REFUTED, DIFFERS)):
        if sum(name in against for name in verdicts) > half:
            return against[-1]
    return NOT_JUDGED if NOT_JUDGED in verdicts else NOT_TOLD_APART


def _example(verdict: str, parts: Sequence[Part], verdicts: Sequence[str]) -> str:
    """First of the parts with a verdict among theirs, unless it simply holds."""
    if verdict in HOLD:
        return ""
    pairs = zip(parts, verdicts, strict=True)
    first = next((part for part, its in pairs if its == verdict), None)
    return f"{first.claim.id}: {first.outcome.reason}" if first else ""
