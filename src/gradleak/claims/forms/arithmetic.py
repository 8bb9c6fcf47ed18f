"""Relations among the paper's printed numbers: means, differences, percentages, ranges."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import Form
from gradleak.claims.outcome import Outcome, holds
from gradleak.claims.printed import Printed
from gradleak.claims.statement import Closed, Statement, Tolerance
from gradleak.errors import ConfigError

PEAK = 255.0
Kind = Literal["value", "mean", "difference", "increase", "count"]
WORDS: dict[Kind, str] = {
    "value": "the number",
    "mean": "the mean",
    "difference": "the difference",
    "increase": "the increase in percent",
    "count": "the count",
}
# Number of cells required, for kinds that do not take any number.
NEEDED: dict[Kind, int] = {"value": 1, "difference": 2, "increase": 2}


class Relation(Closed):
    """A value derived from printed numbers, and the number it should equal.

    `cells` are ids of claims, in which * matches any part. `of`: their ``value`` (one cell),
    ``mean``, first minus second (``difference``), by how many percent the second exceeds the first
    (``increase``), or their number (``count``). It equals the number of the claim `equals`, by
    default the claim's own.
    """

    of: Kind
    cells: list[str] = Field(min_length=1)
    equals: str | None = None

    def value(self, numbers: Sequence[float]) -> float:
        """Compute the value."""
        match self.of:
            case "count":
                return float(len(numbers))
            case "difference":
                return numbers[0] - numbers[1]
            case "increase":
                return 100.0 * (numbers[1] / numbers[0] - 1.0)
            case _:
                return sum(numbers) / len(numbers)

    def extremes(self, cells: Sequence[Statement]) -> tuple[float, float]:
        """Smallest and largest value within the rounding of the numbers."""
        ends = [(cell.value - cell.rounding, cell.value + cell.rounding) for cell in cells]
        # Monotonic in each number, so the ends of the intervals suffice.
        falling = self.of in ("difference", "increase")
        corners = itertools.product(*ends) if falling else zip(*ends, strict=True)
        found = [self.value(corner) for corner in corners]
        return min(found), max(found)

    def check(self, claim: Statement, printed: Printed) -> tuple[str, float, float]:
        """Return the problem in words, if any, the deviation, and the value.

        Raises `ConfigError` if a name matches no claim with a number, or the count of numbers is
        wrong.
        """
        cells = printed.named(self.cells, claim)
        needed = NEEDED.get(self.of, len(cells))
        if len(cells) != needed:
            raise ConfigError(
                f"claim '{claim.id}': {self.of} is of {needed} numbers, but cells names "
                f"{len(cells)}; correct it."
            )
        if self.equals is None and claim.paper_value is None:
            raise ConfigError(f"claim '{claim.id}': nothing to equal; give equals or paper_value.")
        (equals,) = [claim] if self.equals is None else printed.named([self.equals], claim)
        value, (low, high) = self.value([cell.value for cell in cells]), self.extremes(cells)
        slack = equals.rounding * (1 + 1e-9) + 1e-9
        words = ""
        if high < equals.value - slack or low > equals.value + slack:
            shown = ", ".join(cell.statement.rstrip(".") for cell in cells[:4])
            shown += "" if len(cells) <= 4 else f" and {len(cells) - 4} more"
            words = f"{WORDS[self.of]} of ({shown}) is {value:.6g}, not {equals.value:g}"
        return words, abs(value - equals.value), value


class Arithmetic(Form):
    """Printed numbers follow from others, within their rounding; all relations must hold."""

    form: Literal["arithmetic"]
    relations: list[Relation] = Field(min_length=1)
    rules = ("absolute",)
    words = "what the paper's own numbers come to"
    asks = "paper"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge relations of printed numbers; our number is the value of the worst-fitting one."""
        assert isinstance(evidence, Printed)
        found = [relation.check(claim, evidence) for relation in self.relations]
        wrong = tuple(words for words, _, _ in found if words)
        _, value = max((off, value) for _, off, value in found)
        n = len(found)
        words = f"{n - len(wrong)} of {n} hold"
        return Outcome(holds(not wrong), words, value, n=n, n_ok=n, against=wrong)


class Range(Form):
    """Printed numbers lie from `low` to `high`: as many of `cells` as the tolerance says.

    A cell lies inside if its rounding interval reaches the range.
    """

    form: Literal["range"]
    cells: list[str] = Field(min_length=1)
    low: float
    high: float
    rules = ("at_least",)
    words = "share of the paper's numbers that lie in the range"
    asks = "paper"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge how many printed numbers lie in a range; our number is their share."""
        assert isinstance(evidence, Printed)
        cells = evidence.named(self.cells, claim)
        out = [
            cell.statement.rstrip(".")
            for cell in cells
            if not self.low - cell.rounding <= cell.value <= self.high + cell.rounding
        ]
        n, inside = len(cells), len(cells) - len(out)
        few = inside < tolerance.limit * n
        words = f"{inside} of {n} lie from {self.low:g} to {self.high:g}; not {', '.join(out)}"
        verdict, reason = holds(not few), f"{inside} of {n} lie in it"
        return Outcome(verdict, reason, inside / n, n=n, n_ok=n, against=(words,) if few else ())


class PrintedPsnr(Form):
    """The printed MSE and PSNR of a grid's cells agree within rounding."""

    form: Literal["printed"]
    grid: str
    rules = ("absolute",)
    words = "cells of the paper's that agree"
    asks = "paper"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge whether the MSE intervals from both roundings overlap.

        A PSNR corresponds to an MSE of ``255²/10^(PSNR/10)``.
        """
        assert isinstance(evidence, Printed)
        cells: dict[tuple[str, str], dict[str, Statement]] = defaultdict(dict)
        for one in evidence.numbers:
            if one.cell is not None and one.cell.grid == self.grid:
                cells[one.cell.row, one.cell.column][one.cell.metric] = one
        wrong = []
        for (row, column), found in cells.items():
            mse, psnr = found["mse"], found["psnr_255"]
            low, high = (
                PEAK**2 / 10 ** ((psnr.value + sign * psnr.rounding) / 10) for sign in (1, -1)
            )
            if high < mse.value - mse.rounding or low > mse.value + mse.rounding:
                wrong.append(f"{row}, {column}: {mse.value:.4f}, {psnr.value:.4f}")
        n, right = len(cells), len(cells) - len(wrong)
        words = f"{right} of {n} cells agree"
        return Outcome(holds(not wrong), words, float(right), n=n, n_ok=n, against=tuple(wrong))
