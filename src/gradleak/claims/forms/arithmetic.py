"""Relations among the paper's printed numbers: means, differences, percentages, ranges."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
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
Numbers = Sequence[float]


def _mean(numbers: Numbers) -> float:
    return sum(numbers) / len(numbers)


# What each is called, how many cells it takes if not any number, and its value.
KINDS: dict[Kind, tuple[str, int | None, Callable[[Numbers], float]]] = {
    "value": ("the number", 1, _mean),
    "mean": ("the mean", None, _mean),
    "difference": ("the difference", 2, lambda x: x[0] - x[1]),
    "increase": ("the increase in percent", 2, lambda x: 100.0 * (x[1] / x[0] - 1.0)),
    "count": ("the count", None, lambda x: float(len(x))),
}


class Relation(Closed):
    """A value derived from printed numbers by one of `KINDS`, and the number it should equal."""

    of: Kind
    cells: list[str] = Field(min_length=1)  # ids of claims, in which * matches any part
    equals: str | None = None  # id of a claim, by default the claim's own

    def extremes(self, cells: Sequence[Statement]) -> tuple[float, float]:
        """Smallest and largest value within the rounding of the numbers."""
        ends = [(cell.value - cell.rounding, cell.value + cell.rounding) for cell in cells]
        # Monotonic in each number, so the ends of the intervals suffice.
        falling = self.of in ("difference", "increase")
        corners = itertools.product(*ends) if falling else zip(*ends, strict=True)
        found = [KINDS[self.of][2](corner) for corner in corners]
        return min(found), max(found)

    def check(self, claim: Statement, printed: Printed) -> tuple[str, float, float]:
        """Return the problem in words, if any, the deviation, and the value."""
        cells = printed.named(self.cells, claim)
        name, needed, compute = KINDS[self.of]
        if needed is not None and len(cells) != needed:
            raise ConfigError(
                f"claim '{claim.id}': {self.of} is of {needed} numbers, but cells names "
                f"{len(cells)}; correct it."
            )
        if self.equals is None and claim.paper_value is None:
            raise ConfigError(f"claim '{claim.id}': nothing to equal; give equals or paper_value.")
        (equals,) = [claim] if self.equals is None else printed.named([self.equals], claim)
        value, (low, high) = compute([cell.value for cell in cells]), self.extremes(cells)
        slack = equals.rounding * (1 + 1e-9) + 1e-9
        words = ""
        if high < equals.value - slack or low > equals.value + slack:
            shown = ", ".join(cell.statement.rstrip(".") for cell in cells[:4])
            shown += "" if len(cells) <= 4 else f" and {len(cells) - 4} more"
            words = f"{name} of ({shown}) is {value:.6g}, not {equals.value:g}"
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
        few, share = inside < tolerance.limit * n, f"{inside} of {n} lie"
        words = f"{share} from {self.low:g} to {self.high:g}; not {', '.join(out)}"
        against = (words,) if few else ()
        return Outcome(holds(not few), f"{share} in it", inside / n, n=n, n_ok=n, against=against)


class PrintedPsnr(Form):
    """The printed MSE and PSNR of a grid's cells agree within rounding."""

    form: Literal["printed"]
    grid: str
    rules = ("absolute",)
    words = "cells of the paper's that agree"
    asks = "paper"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge whether the MSE intervals from both roundings overlap, MSE = 255²/10^(PSNR/10)."""
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
