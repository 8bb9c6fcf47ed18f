"""Outcome of judging a claim."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

REPRODUCED = "reproduced"
EXCEEDS = "exceeds"
DIFFERS = "differs"
NOT_TOLD_APART = "not told apart"
REFUTED = "refuted"
BY_DEFINITION = "by definition"
NOT_JUDGED = "not judged"
VERDICTS = (*(REPRODUCED, EXCEEDS, DIFFERS, NOT_TOLD_APART, REFUTED, BY_DEFINITION, NOT_JUDGED),)
# Begins the reason of a claim for which results are missing.
MISSING = "data"


class NotJudged(Exception):
    """Raised if a claim cannot be judged; the message says what is missing."""


@dataclass(frozen=True)
class Outcome:
    """Our number with its interval, counts of runs, and the verdict with its reason.

    NaN and None are written as empty cells.
    """

    verdict: str
    reason: str
    ours: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int | None = None  # runs tried
    n_ok: int | None = None  # runs with a value
    against: tuple[str, ...] = ()  # printed numbers that contradict the claim, in words
    # p-values of a test, that the sentence holds and that its opposite does.
    p: float = math.nan
    p_against: float = math.nan
    units: int | None = None  # independent values behind a number, if they are not the runs
    window: str = ""  # which results of ours agree with the paper
    one_sided: bool = False  # not judged, for what a verdict on this side would need
    scale: str = ""  # of the runs


def holds(condition: bool) -> str:
    """Verdict on a sentence that either holds or does not."""
    return REPRODUCED if condition else DIFFERS


def tested(p: float, p_against: float, alpha: float) -> str:
    """Verdict of a test: the sentence holds, its opposite does, or the runs cannot tell.

    `p` is that of the sentence, `p_against` that of its opposite.
    """
    if p < alpha:
        return REPRODUCED
    return DIFFERS if p_against < alpha else NOT_TOLD_APART


def plainly(wrong: Iterable[str]) -> Outcome:
    """Judge by printed numbers, without a test; `wrong` are those that contradict the sentence."""
    against = tuple(wrong)
    return Outcome(holds(not against), "", against=against)


def joined(*parts: str) -> str:
    """Join the non-empty parts of a reason."""
    return "; ".join(filter(None, parts))


def failed(n: int, n_ok: int, words: str = "") -> str:
    """Say how many of `n` runs failed, and in `words` the consequence; empty if none did."""
    return f"{n - n_ok} of {n} runs failed{words}" if n_ok < n else ""
