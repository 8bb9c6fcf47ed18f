"""Base class of the forms of a query, and helpers for judging."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
from pydantic import Field

from gradleak.claims.evidence import Evidence
from gradleak.claims.outcome import NotJudged, Outcome
from gradleak.claims.power import ONE_DRAW, allowed
from gradleak.claims.statement import EVERY, Closed, Rule, Statement, Tolerance, Where, items
from gradleak.claims.statistics import LEVEL, MIN_UNITS, p_below_zero

# An interval from the smallest to the largest of our values.
EXTREMES = "least and largest"
# What a query reads, or what a claim is judged by, where that is no result of ours.
PAPER = "the paper"

Asks = Literal["ours", "paper", "both"]
Unit = Literal["seed", "image", "batch"]
UNIT_COLUMN = {"seed": "seed", "image": "index", "batch": "batch"}
UNITS = {"seed": "seeds", "image": "images", "batch": "batches"}


class Form(Closed):
    """A form of a query: its selection, how it is judged, and what our number is called.

    A subclass has a literal `form`, its fields, `rules` and `judge`, and either `words` or `ours`.
    """

    form: str
    # Of p-values: 1 if each of the two sides is tested at α, 2 if half of it.
    sided: ClassVar[Literal[1, 2]] = 1
    rules: ClassVar[tuple[Rule, ...]]  # of tolerances that it accepts
    words: ClassVar[str] = ""  # name of our number
    agrees: ClassVar[str] = ""  # when a claim holds, where no amount of the tolerance says so
    # Judged by our results, by the paper's own numbers, or by ours unless the paper's refute it.
    asks: ClassVar[Asks] = "ours"

    @abstractmethod
    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge a claim by evidence: our results, or the paper's own numbers as one run each.

        Raises `NotJudged` if something is missing, which the message names, and `ArtifactError` if
        our results are malformed.
        """

    def ours(self, tolerance: Tolerance) -> str:
        """Describe our number; empty if there is none."""
        return self.words

    def window(self, claim: Statement, tolerance: Tolerance) -> str:
        """Describe which results agree with a sentence: a test's level, or a limit."""
        if self.agrees:
            return self.agrees
        if tolerance.rule == "alpha":
            return f"p < {tolerance.alpha:g}"
        if tolerance.rule == "equivalence":
            return f"± {tolerance.limit:g}, p < {tolerance.alpha:g}"
        return allowed(claim, tolerance) if tolerance.rule in EVERY else ""

    def fault(self, claim: Statement, tolerance: Tolerance) -> str:
        """Say what is wrong with a claim of this form, and what to do; empty if nothing."""
        return ""

    @abstractmethod
    def found_in(self) -> list[str]:
        """Name what the query reads: experiments, tables, or the paper's own numbers."""

    def interval(self, tolerance: Tolerance) -> str:
        """Describe the interval from low to high: `EXTREMES`, or its coverage and quantity."""
        return percent(LEVEL if self.sided == 1 else 0.95)


def percent(share: float) -> str:
    """Format a share as a percentage, with a space."""
    return f"{share:.0%}".replace("%", " %")


def independent(unit: Unit, runs: pd.DataFrame | pd.Index) -> Unit:
    """Return the unit that `runs` can be tested over, from their ``seed``, ``batch``, ``index``.

    Images of one batch share a gradient, so that the batch is the unit of a claim over images.
    """
    if unit != "image":
        return unit
    frame = runs if isinstance(runs, pd.DataFrame) else runs.to_frame(index=False)
    several = frame.groupby(["seed", "batch"])["index"].nunique() > 1
    return "batch" if several.any() else unit


def few(units: int, unit: Unit) -> str:
    """Say that units are too few for a test; empty if there are enough."""
    if units >= MIN_UNITS:
        return ""
    if units == 1:
        return f"{ONE_DRAW}: one {unit}; {MIN_UNITS} {UNITS[unit]} can reach a p-value of 0.05"
    return f"scale: {units} {UNITS[unit]} cannot reach a p-value of 0.05, {MIN_UNITS} can"


def enough(units: int, unit: Unit) -> None:
    """Refuse units that are too few for a test."""
    if words := few(units, unit):
        raise NotJudged(words)


def both_sides(differences: np.ndarray) -> tuple[float, float]:
    """One-sided p-values for paired differences below 0, and above."""
    return p_below_zero(differences), p_below_zero(-differences)


def counted(unit: Unit, units: int, seeds: Iterable[Any]) -> str:
    """Say, for a reason, how many units there are and whether they share an initialization."""
    return f"{units} {UNITS[unit]}{shared(unit, seeds)}"


def shared(unit: Unit, seeds: Iterable[Any]) -> str:
    """Say, for a reason, that units share one initialization, or few."""
    draws = len(set(seeds))
    if unit == "seed" or draws >= MIN_UNITS:
        return ""
    return ", one draw of the weights" if draws == 1 else f", {draws} draws of the weights"


def experiments(*wheres: Where) -> list[str]:
    """Name the experiments of selections of scores, each once; ``scores`` if none is named."""
    found = [name for where in wheres for name in items(where.get("result", "scores"))]
    return list(dict.fromkeys(found))


class Elsewhere(Form):
    """A sentence measured in another file, which no deterministic table can contain."""

    form: Literal["elsewhere"]
    reason: str = Field(min_length=1)
    rules = get_args(Rule)

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Leave it unjudged, with the given reason."""
        raise NotJudged(self.reason)

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return []
