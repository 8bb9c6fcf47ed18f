"""Comparisons of estimates with an error, such as accuracies."""

import math
from dataclasses import replace
from typing import Literal, NamedTuple

from pydantic import Field

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import Form
from gradleak.claims.forms.columns import Less, only, tables, told
from gradleak.claims.outcome import NOT_JUDGED, NotJudged, Outcome, plainly, tested
from gradleak.claims.power import ONE_DRAW
from gradleak.claims.printed import ERROR, Printed
from gradleak.claims.statement import Side, Statement, Tolerance
from gradleak.claims.statistics import bonferroni, freedom, t_above, t_value, z_value

Unit = Literal["image", "batch", "draw"]
# Columns that count units, of which the first that a table has is read.
COUNTS: dict[Unit, tuple[str, ...]] = {
    "image": ("tested", "n"), "batch": ("batches",), "draw": ("n",)
}  # fmt: skip
# What an estimate rests on, besides the number of units.
OVER: dict[Unit, str] = {
    "image": "test images, one training each",
    "batch": "batches",
    "draw": "draws or clients, one training each",
}


class Estimates(Form):
    """Comparisons of estimates with a standard error, such as accuracies; all must hold.

    A side names one row of a table of ours, whose column ``error`` has the standard error. `unit`
    is what the estimates are means over, and its number is in the table, or given as `units`.
    Test images are many, so that the test is normal; over batches or draws it is Student's t.
    """

    form: Literal["estimates"]
    comparisons: list[Less] = Field(min_length=1)
    unit: Unit = "image"
    units: int | None = Field(default=None, ge=1)
    sided = 2
    rules = ("alpha", "at_least")
    asks = "both"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge comparisons of estimates; our number is the least clear difference.

        A comparison holds if the whole interval of its difference lies above the amount (0 under
        rule ``alpha``), and fails if all of it lies below. Otherwise it is not told apart, unless
        another comparison fails. A single batch or draw has no error and is not judged.
        """
        pairs = [pair for pair in self.comparisons if told(pair, evidence)]
        if isinstance(evidence, Printed):
            return _by_printed(pairs, evidence, claim, tolerance)
        found = [self._difference(pair, evidence, claim, tolerance.alpha) for pair in pairs]
        fewest = min(one.units for one in found)
        if fewest == 1:
            gap = min(one.gap for one in found)
            words = f"{ONE_DRAW}: two or more {OVER[self.unit]} would give an interval"
            return Outcome(NOT_JUDGED, words, gap, n=1, n_ok=1)
        p, p_against = zip(*(one.p_values(tolerance.limit) for one in found), strict=True)
        right, count = sum(one < tolerance.alpha for one in p), len(found)
        failed = sum(one < tolerance.alpha / count for one in p_against)
        against = bonferroni(p_against)
        verdict = tested(max(p), against, tolerance.alpha)
        words = f"{right} of {count} comparisons hold beyond chance, {failed} fail"
        words += f", over {fewest} {self._over(pairs, evidence)}"
        least = min(found, key=lambda one: one.low)
        made = Outcome(verdict, words, least.gap, least.low, least.high, fewest, fewest)
        return replace(made, p=max(p), p_against=against)

    def _over(self, pairs: list[Less], evidence: Evidence) -> str:
        """Words of `OVER`, with the least number of trainings if the tables tell it."""
        sides = [side for pair in pairs for _, side in pair]
        told = [side for side in sides if "trainings" in evidence.tables[side.table]]
        fewest = min((int(_beside(side, "trainings", evidence)) for side in told), default=1)
        if fewest == 1 or len(told) < len(sides):
            return OVER[self.unit]
        return OVER[self.unit].replace("one training", f"{fewest} trainings")

    def _difference(
        self, pair: Less, evidence: Evidence, claim: Statement, alpha: float
    ) -> "_Difference":
        """Difference of independent estimates, with its 1 − alpha interval."""
        less, more = (self._estimate(side, evidence, claim) for side in (pair.less, pair.more))
        error, gap = math.hypot(less.error, more.error), more.value - less.value
        units = min(less.units, more.units)
        free = math.inf
        if self.unit != "image" and units > 1:
            free = freedom([(one.error, one.units) for one in (less, more)])
        half = t_value(1 - alpha, free) * error
        return _Difference(gap, gap - half, gap + half, error, free, units)

    def _estimate(self, side: Side, evidence: Evidence, claim: Statement) -> "_Estimate":
        """Value of the row selected by a side, its standard error and its units."""
        value = only(evidence.column(side), side, claim)
        error, units = _beside(side, ERROR, evidence), self._units(side, evidence)
        if self.unit == "batch" and units > 1:
            # Tables widen it for few batches, to 1/1.96 of half of Student's 95 % interval.
            error *= z_value(0.95) / t_value(0.95, units - 1)
        return _Estimate(value, error, units)

    def _units(self, side: Side, evidence: Evidence) -> int:
        if self.units is not None:
            return self.units
        columns = evidence.tables[side.table].columns
        counted = next((name for name in COUNTS[self.unit] if name in columns), None)
        if counted is None:
            raise NotJudged(f"data: table {side.table} has no column '{COUNTS[self.unit][0]}'")
        return int(_beside(side, counted, evidence))

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return tables(self.comparisons)

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        amount = f"{tolerance.limit:g}".replace("-", "−")
        return f"least clear difference; above {amount} where the sentence holds"


class _Estimate(NamedTuple):
    """A value with its standard error, over so many units."""

    value: float
    error: float
    units: int


class _Difference(NamedTuple):
    """`more` minus `less`, with its interval, standard error, and degrees of freedom."""

    gap: float
    low: float
    high: float
    error: float
    freedom: float
    units: int

    def p_values(self, amount: float) -> tuple[float, float]:
        """Two-sided p-value if the difference is above the amount, and if it is below; else 1."""
        above = self.gap - amount
        if not self.error:
            return float(above <= 0), float(above >= 0)
        t = above / self.error
        return min(1.0, 2 * t_above(t, self.freedom)), min(1.0, 2 * t_above(-t, self.freedom))


def _beside(side: Side, column: str, evidence: Evidence) -> float:
    """Value of another column in the row that a side selects."""
    return float(evidence.column(side.model_copy(update={"column": column}))[0])


def _by_printed(
    pairs: list[Less], printed: Printed, claim: Statement, tolerance: Tolerance
) -> Outcome:
    """Compare printed estimates, which have no error."""
    wrong = []
    for pair in pairs:
        less, more = (only(printed.column(side), side, claim) for side in (pair.less, pair.more))
        if more - less < tolerance.limit:
            wrong.append(f"{printed.of(pair.more).statement} {printed.of(pair.less).statement}")
    return plainly(wrong)
