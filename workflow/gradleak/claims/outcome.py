"""What judging a claim gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

REPRODUCED = "reproduced"
EXCEEDS = "exceeds"
DIFFERS = "differs"
REFUTED = "refuted"
NOT_JUDGED = "not judged"
VERDICTS = (REPRODUCED, EXCEEDS, DIFFERS, REFUTED, NOT_JUDGED)


@dataclass(frozen=True)
class Outcome:
    """Ours, its interval, how many runs, and the verdict with its reason.

    `n` counts the runs that were tried and `n_ok` those that gave a value; NaN and None are
    written as empty cells.
    """

    verdict: str
    reason: str
    ours: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int | None = None
    n_ok: int | None = None


def holds(condition: bool) -> str:
    """Verdict on a sentence that either holds or does not."""
    return REPRODUCED if condition else DIFFERS
