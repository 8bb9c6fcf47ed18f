"""Relations among the paper's printed numbers: means, differences, percentages, ranges."""

import itertools
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import PAPER, Form
from gradleak.claims.outcome import Outcome, holds
from gradleak.claims.printed import Printed
from gradleak.claims.statement import Closed, Rule, Statement, Tolerance
from gradleak.errors import ConfigError

PEAK = 255.0
Kind = Literal["value", "mean", "difference", "increase", "count"]
Numbers = Sequence[float]
# What each is called, how many cells it takes if not any number, and its value.
KINDS: dict[Kind, tuple[str, int | None, Callable[[Numbers], float]]] = {
    "value": ("the number", 1, lambda x: x[0]),
    "mean": ("the mean", None, lambda x: sum(x) / len(x)),
    "difference": ("the difference", 2, lambda x: x[0] - x[1]),
    "increase": ("the increase in percent", 2, lambda x: 100.0 * (x[1] / x[0] - 1.0)),
    "count": ("the count", None, lambda x: float(len(x))),
}
# In words, our number, how many numbers were held against it, and which of them are wrong.
Checked = tuple[str, float, int, list[str]]


class _OfPrinted(Form):
    """A statement about the paper's printed numbers alone."""

    rules: ClassVar[tuple[Rule, ...]] = ("absolute",)
    asks = "paper"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge by printed numbers; it holds if none is wrong within its rounding."""
        assert isinstance(evidence, Printed)
        words, ours, n, wrong = self._check(claim, tolerance, evidence)
        return Outcome(holds(not wrong), words, ours, n=n, n_ok=n, against=tuple(wrong))

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return [PAPER]

    @abstractmethod
    def _check(self, claim: Statement, tolerance: Tolerance, printed: Printed) -> Checked: ...


class Relation(Closed):
    """A value derived from printed numbers by one of `KINDS`, and the number it should equal."""

    of: Kind
    cells: list[str] = Field(min_length=1)  # ids of claims, in which * matches any part
    equals: str | None = None  # id of a claim, by default the claim's own

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
        # Within the rounding: monotonic in each number, so the ends of the intervals suffice.
        ends = [(cell.value - cell.rounding, cell.value + cell.rounding) for cell in cells]
        falling = self.of in ("difference", "increase")
        corners = itertools.product(*ends) if falling else zip(*ends, strict=True)
        extremes = [compute(corner) for corner in corners]
        value, words = compute([cell.value for cell in cells]), ""
        slack = equals.rounding * (1 + 1e-9) + 1e-9
        if max(extremes) < equals.value - slack or min(extremes) > equals.value + slack:
            shown = ", ".join(cell.statement.rstrip(".") for cell in cells[:4])
            shown += "" if len(cells) <= 4 else f" and {len(cells) - 4} more"
            words = f"{name} of ({shown}) is {value:.6g}, not {equals.value:g}"
        return words, abs(value - equals.value), value


class Arithmetic(_OfPrinted):
    """Printed numbers follow from others; our number is the value of the worst-fitting relation."""

    form: Literal["arithmetic"]
    relations: list[Relation] = Field(min_length=1)
    words = "what the paper's own numbers come to"

    def _check(self, claim: Statement, tolerance: Tolerance, printed: Printed) -> Checked:
        found = [relation.check(claim, printed) for relation in self.relations]
        wrong = [words for words, _, _ in found if words]
        _, value = max((off, value) for _, off, value in found)
        return f"{len(found) - len(wrong)} of {len(found)} hold", value, len(found), wrong


class Range(_OfPrinted):
    """Printed numbers lie from `low` to `high`: as many of `cells` as the tolerance says.

    A cell lies inside if its rounding interval reaches the range. Our number is their share.
    """

    form: Literal["range"]
    cells: list[str] = Field(min_length=1)
    low: float
    high: float
    rules = ("at_least",)
    words = "share of the paper's numbers that lie in the range"

    def _check(self, claim: Statement, tolerance: Tolerance, printed: Printed) -> Checked:
        cells = printed.named(self.cells, claim)
        out = [
            cell.statement.rstrip(".")
            for cell in cells
            if not self.low - cell.rounding <= cell.value <= self.high + cell.rounding
        ]
        n, inside = len(cells), len(cells) - len(out)
        share = f"{inside} of {n} lie"
        words = f"{share} from {self.low:g} to {self.high:g}; not {', '.join(out)}"
        few = inside < tolerance.limit * n
        return f"{share} in it", inside / n, n, [words] if few else []


class PrintedPsnr(_OfPrinted):
    """The printed MSE and PSNR of a grid's cells agree: the intervals of MSE from both overlap.

    MSE = 255²/10^(PSNR/10).
    """

    form: Literal["printed"]
    grid: str
    words = "cells of the paper's that agree"

    def _check(self, claim: Statement, tolerance: Tolerance, printed: Printed) -> Checked:
        cells: dict[tuple[str, str], dict[str, Statement]] = defaultdict(dict)
        for one in printed.numbers:
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
        right = len(cells) - len(wrong)
        return f"{right} of {len(cells)} cells agree", float(right), len(cells), wrong
