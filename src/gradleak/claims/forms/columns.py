"""Columns of our tables: values, order of two, and estimates with an error."""

import math
from typing import Literal

import numpy as np
from pydantic import Field
from scipy import stats

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import Form
from gradleak.claims.forms.runs import exact, inside, interval, of_numbers
from gradleak.claims.outcome import NOT_JUDGED, NotJudged, Outcome, holds, plainly
from gradleak.claims.printed import ERROR, Printed
from gradleak.claims.statement import EVERY, Closed, Side, Statement, Tolerance, describe
from gradleak.errors import ConfigError


class Column(Form, Side):
    """Values of a column, such as c(M) or RA-i."""

    form: Literal["column"]
    rules = ("prediction", *EVERY)
    words = "what our table has; of several values the median"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge a column of a table: every value within the tolerance, or one further draw."""
        values = evidence.column(self)
        n = int(values.size)
        if tolerance.rule != "prediction":
            return exact(values, n, claim, tolerance)
        ours = float(np.median(values))
        if n < 2:
            return Outcome(NOT_JUDGED, "scale: one value has no interval", ours, n=n, n_ok=n)
        low, high = interval(values, self.column, tolerance)
        if claim.paper_value is None:
            return Outcome("", "", ours, low, high, n, n)
        ok = inside(claim, low, high)
        words = f"the paper's value {'lies' if ok else 'does not lie'} in our interval"
        return Outcome(holds(ok), words, ours, low, high, n, n)

    def interval(self, tolerance: Tolerance) -> str:
        """See `Form.interval`."""
        return of_numbers(tolerance, "value")


class Less(Closed):
    """`less` is below `more`."""

    less: Side
    more: Side


class Equal(Closed):
    """`one` and `other` are equal, value by value."""

    one: Side
    other: Side


def _told(pair: Less | Equal, evidence: Evidence) -> bool:
    """True unless the paper is the evidence and does not print both sides."""
    return not isinstance(evidence, Printed) or all(evidence.prints(side) for _, side in pair)


class Columns(Form):
    """Deterministic comparisons; all must hold."""

    form: Literal["columns"]
    comparisons: list[Less | Equal] = Field(min_length=1)
    rules = ("absolute",)
    words = "smallest gap between the two sides; above 0 where all of it holds"
    asks = "both"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge deterministic comparisons; our number is the smallest gap, above 0 if all hold.

        Two equal integers have a gap of 0.5.
        """
        pairs = [pair for pair in self.comparisons if _told(pair, evidence)]
        gaps = [_gap(pair, evidence) for pair in pairs]
        if isinstance(evidence, Printed):
            wrong = (pair for pair, gap in zip(pairs, gaps, strict=True) if gap <= 0)
            return plainly(" ".join(evidence.of(s).statement for _, s in pair) for pair in wrong)
        right, n = sum(gap > 0 for gap in gaps), len(gaps)
        return Outcome(
            holds(right == n), f"{right} of {n} comparisons hold", min(gaps), n=n, n_ok=n
        )


def _gap(pair: Less | Equal, evidence: Evidence) -> float:
    """Return how clearly a comparison holds, above 0 if it does."""
    first, second = (evidence.column(side) for _, side in pair)
    if isinstance(pair, Less):
        return float(second.min() - first.max())
    if first.size != second.size:
        raise NotJudged(f"data: {first.size} values of {pair.one.column} for {second.size}")
    return 0.5 - float(np.abs(first - second).max())


class Estimates(Form):
    """Comparisons of estimates with a standard error, such as accuracies; all must hold.

    A side names one row of a table of ours, whose column ``error`` has the standard error.
    """

    form: Literal["estimates"]
    comparisons: list[Less] = Field(min_length=1)
    rules = ("alpha", "at_least")
    asks = "both"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge comparisons of estimates; our number is the least clear difference.

        A comparison holds if the whole interval of its difference lies above the amount (0 under
        rule ``alpha``), and fails if all of it lies below. Otherwise it is undecided: the claim is
        not judged unless another comparison fails.
        """
        amount = tolerance.limit
        pairs = [pair for pair in self.comparisons if _told(pair, evidence)]
        found = [_difference(pair, evidence, claim, tolerance.alpha) for pair in pairs]
        failed = [pair for pair, (_, _, high) in zip(pairs, found, strict=True) if high < amount]
        if isinstance(evidence, Printed):
            return plainly(
                f"{evidence.of(pair.more).statement} {evidence.of(pair.less).statement}"
                for pair in failed
            )
        gap, low, high = min(found, key=lambda one: one[1])
        right, n = sum(low > amount for _, low, _ in found), len(found)
        verdict = holds(not failed) if failed or right == n else NOT_JUDGED
        words = f"{right} of {n} comparisons hold beyond chance, {len(failed)} fail"
        if verdict == NOT_JUDGED:
            words = f"scale: not told apart: {gap:.2f} from {low:.2f} to {high:.2f}; {words}"
        return Outcome(verdict, words, gap, low, high, n, n)

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        amount = f"{tolerance.limit:g}".replace("-", "−")
        return f"least clear difference; above {amount} where the sentence holds"


def _difference(
    pair: Less, evidence: Evidence, claim: Statement, alpha: float
) -> tuple[float, float, float]:
    """`more` minus `less`, with the 1 − alpha interval of a difference of independent estimates."""
    less, more = (_estimate(side, evidence, claim) for side in (pair.less, pair.more))
    half = float(stats.norm.ppf(1 - alpha / 2)) * math.hypot(less[1], more[1])
    gap = more[0] - less[0]
    return gap, gap - half, gap + half


def _estimate(side: Side, evidence: Evidence, claim: Statement) -> tuple[float, float]:
    """Value and standard error of the row selected by a side."""
    values = evidence.column(side)
    errors = evidence.column(side.model_copy(update={"column": ERROR}))
    if values.size != 1:
        raise ConfigError(
            f"claim '{claim.id}': table {side.table} has {values.size} rows for "
            f"{describe(side.where)}, and an estimate is one; name more in where."
        )
    return float(values[0]), float(errors[0])
