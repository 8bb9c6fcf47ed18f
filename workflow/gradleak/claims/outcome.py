"""What judging a claim gives."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

REPRODUCED = "reproduced"
EXCEEDS = "exceeds"
DIFFERS = "differs"
REFUTED = "refuted"
NOT_JUDGED = "not judged"
VERDICTS = (REPRODUCED, EXCEEDS, DIFFERS, REFUTED, NOT_JUDGED)


class NotJudged(Exception):
    """A claim cannot be judged; the message says for want of what."""


@dataclass(frozen=True)
class Outcome:
    """Ours, its interval, how many runs, and the verdict with its reason.

    NaN and None are written as empty cells.
    """

    verdict: str
    reason: str
    ours: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int | None = None  # runs that were tried
    n_ok: int | None = None  # those that gave a value
    against: tuple[str, ...] = ()  # printed numbers that the claim contradicts, in words


def holds(condition: bool) -> str:
    """Verdict on a sentence that either holds or does not."""
    return REPRODUCED if condition else DIFFERS


def plainly(wrong: Iterable[str]) -> Outcome:
    """Judge on printed numbers, which need no test: `wrong` are those that say otherwise."""
    against = tuple(wrong)
    return Outcome(holds(not against), "", against=against)


def joined(*parts: str) -> str:
    """Put parts of a reason together, less those that are empty."""
    return "; ".join(filter(None, parts))


def failed(n: int, n_ok: int, words: str = "") -> str:
    """Say how many of `n` runs failed, and in `words` what that means; nothing if none did."""
    return f"{n - n_ok} of {n} runs failed{words}" if n_ok < n else ""
