"""Statements of a paper, and tolerances for our results."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Scalar = str | int | float
Where = dict[str, Scalar | list[Scalar]]
Answers = Literal["own", "all"]

# Tables with a row per layer; any other is one of our results, named by its file.
LAYERED = ("security", "rank")


class Closed(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Side(Closed):
    """A column of a table: security, rank, or another of our tables by name.

    For security and rank, `total` sums it over a model's layers, and ``position`` in `where` is the
    layer's position in its model, from 1.
    """

    column: str
    where: Where
    total: bool = False
    table: str = "security"

    @model_validator(mode="after")
    def _of_layers(self) -> Self:
        if self.total and self.table not in LAYERED:
            raise ValueError(f"total sums over layers of {' or '.join(LAYERED)}; leave it out")
        return self


def items(wanted: Scalar | list[Scalar]) -> list[str]:
    """Values of a selection's key, as in the tables' text columns."""
    return [str(item) for item in (wanted if isinstance(wanted, list) else [wanted])]


def describe(where: Where) -> str:
    """Describe a selection, for a reason."""
    return ", ".join(f"{key} {' or '.join(items(wanted))}" for key, wanted in where.items())


Rule = Literal["prediction", "mean", "absolute", "at_most", "at_least", "alpha", "equivalence"]
# Rules of numbers under which all values must agree, so that low and high are the extremes.
EVERY: tuple[Rule, ...] = ("absolute", "at_most", "at_least")


class Tolerance(Closed):
    """Permitted deviation from the paper, with a reason.

    ``prediction`` (of one further run) and ``mean`` (of the arithmetic mean over images) use
    `level` and widen by `factor` (in MSE; for PSNR its dB). `margin` is added on both sides, for
    SSIM, which may be 0. ``absolute``, ``at_most``, ``at_least`` and ``equivalence`` use `amount`;
    tests use `alpha`.
    """

    rule: Rule
    level: float = Field(default=0.95, gt=0, lt=1)
    alpha: float = Field(default=0.05, gt=0, lt=1)
    factor: float = Field(default=1.0, ge=1)
    margin: float = Field(default=0.0, ge=0)
    amount: float | None = None
    reason: str = Field(min_length=1)

    @model_validator(mode="after")
    def _amount_given(self) -> Self:
        if self.amount is None and self.rule in (*EVERY, "equivalence"):
            raise ValueError(f"rule {self.rule} needs an amount")
        return self

    @property
    def limit(self) -> float:
        """The amount, 0 by default."""
        return self.amount or 0.0

    def meets(self, values: Any, amount: float | None = None) -> Any:
        """Mask of values within the limit of rule ``at_most`` or ``at_least``."""
        limit = self.limit if amount is None else amount
        return values <= limit if self.rule == "at_most" else values >= limit


class Cell(Closed):
    """Position of a number in one of our tables."""

    grid: str
    table: str
    row: str
    column: str
    metric: str


class Statement(Closed):
    """A number or sentence as printed in a paper."""

    id: str = Field(min_length=1)
    statement: str
    paper_value: float | None = None
    decimals: int | None = None
    spread: float = Field(default=0.0, ge=0)  # printed after ±
    printed: str = ""  # number or words of a cell as printed
    whose: Literal["paper", "ours"] = "paper"
    cell: Cell | None = None

    @property
    def is_printed(self) -> bool:
        """True for the paper's numbers, False for ours beside them."""
        return self.paper_value is not None and self.whose == "paper"

    @property
    def value(self) -> float:
        """Value of a statement that has one."""
        assert self.paper_value is not None
        return self.paper_value

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit, 0 if not stated."""
        return 0.0 if self.decimals is None else 0.5 * 10.0**-self.decimals

    @property
    def shown(self) -> str:
        """Paper's value as printed, or with four decimals."""
        return self.printed or ("" if self.paper_value is None else f"{self.paper_value:.4f}")
