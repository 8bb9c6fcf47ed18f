"""What a claim is: closed models of a claims file after its grids and loops are written out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Scalar = str | int | float
Where = dict[str, Scalar | list[Scalar]]
Unit = Literal["seed", "image"]


class Closed(BaseModel):
    """A model that refuses unknown keys and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Tolerance(Closed):
    """How far ours may be from the paper's, and why; fixed before the first recorded run.

    ``prediction`` and ``mean`` use `level` and widen by `factor` (in MSE; for a PSNR its dB);
    ``factor`` compares with our median; ``absolute``, ``at_most``, ``at_least`` and
    ``equivalence`` use `amount`; tests use `alpha`.
    """

    rule: Literal[
        "prediction", "mean", "factor", "absolute", "at_most", "at_least", "alpha", "equivalence"
    ]
    level: float = Field(default=0.95, gt=0, lt=1)
    alpha: float = Field(default=0.05, gt=0, lt=1)
    factor: float = Field(default=1.0, ge=1)
    amount: float | None = None
    reason: str = Field(min_length=1)

    @model_validator(mode="after")
    def _amount_given(self) -> Tolerance:
        if self.amount is None and self.rule in ("absolute", "at_most", "at_least", "equivalence"):
            raise ValueError(f"rule {self.rule} needs an amount")
        return self


class Needs(Closed):
    """What a claim's judgement needs: the real images, or at least a scale."""

    images: Literal["real"] | None = None
    scale: Literal["smoke", "laptop", "paper"] = "smoke"


class Runs(Closed):
    """Values of one metric over the runs (seeds, images) of a selection of scores."""

    form: Literal["runs"]
    metric: str
    where: Where


class Column(Closed):
    """A column of the security files; `total` sums it over a model's layers.

    ``position`` in `where` is the layer's place in its model, from 1.
    """

    form: Literal["column"]
    column: str
    where: Where
    total: bool = False


class Side(Closed):
    """One side of a deterministic comparison: a column of the security files."""

    column: str
    where: Where
    total: bool = False


class Less(Closed):
    """`less` is below `more`."""

    less: Side
    more: Side


class Columns(Closed):
    """Deterministic comparisons; all must hold."""

    form: Literal["columns"]
    comparisons: list[Less] = Field(min_length=1)


class Better(Closed):
    """`better` beats `than`; several models on one side are averaged per seed and image."""

    better: Where
    than: Where


class Compare(Closed):
    """Paired comparisons of runs, each tested over `unit`; all must hold."""

    form: Literal["compare"]
    metric: str = "mse"
    unit: Unit
    where: Where = {}
    comparisons: list[Better] = Field(min_length=1)


class Pair(Closed):
    """Two selections that are compared run by run."""

    one: Where
    other: Where


class Close(Closed):
    """`one` and `other` differ little, on the value itself or on log10 of it."""

    form: Literal["close"]
    metric: str = "mse"
    measure: Literal["value", "log"]
    unit: Unit
    where: Where = {}
    one: Where
    other: Where


class Limit(Closed):
    """Most units have all their runs beyond the amount in the tolerance.

    With `best_of` only the best of the attacks in `where` counts, for each seed and image.
    """

    form: Literal["limit"]
    metric: str
    unit: Unit
    where: Where
    best_of: Literal["attack"] | None = None

    @model_validator(mode="after")
    def _several_attacks(self) -> Limit:
        if self.best_of and not isinstance(self.where.get("attack"), list):
            raise ValueError("best_of needs a list of attacks in where; list them")
        return self


class Correlation(Closed):
    """Spearman's correlation between two columns of the index table, one row per network."""

    form: Literal["correlation"]
    x: str
    y: str
    sign: Literal["negative", "positive"]


class Effect(Closed):
    """The mean effect within `pairs` is smaller than the median difference within `among`."""

    form: Literal["effect"]
    metric: str = "mse"
    unit: Unit
    where: Where = {}
    pairs: list[Pair] = Field(min_length=1)
    among: list[Where] = Field(min_length=2)


class Printed(Closed):
    """The printed MSE and PSNR of a grid's cells agree within rounding."""

    form: Literal["printed"]
    grid: str


Query = Annotated[
    Runs | Column | Columns | Compare | Close | Limit | Correlation | Effect | Printed,
    Field(discriminator="form"),
]

RULES: dict[str, tuple[str, ...]] = {
    "runs": ("prediction", "mean", "factor", "absolute", "at_most", "at_least"),
    "column": ("absolute", "at_most", "at_least"),
    "columns": ("absolute",),
    "compare": ("alpha",),
    "close": ("equivalence",),
    "limit": ("at_most", "at_least"),
    "correlation": ("alpha",),
    "effect": ("alpha",),
    "printed": ("absolute",),
}


class Cell(Closed):
    """Where a number stands in one of our tables."""

    grid: str
    table: str
    row: str
    column: str
    metric: str


class Case(Closed):
    """Images and scale of a run."""

    images: Literal["embedded", "real"]
    scale: Literal["smoke", "laptop", "paper"]


class Claim(Closed):
    """One number or one sentence of a paper, and how ours is found and judged.

    A claim whose `reading` is ``ours`` is stricter than the paper's sentence, so the paper's own
    table cannot refute it. `explanation` was written for the run `explanation_of`.
    """

    id: str = Field(min_length=1)
    paper: str
    locator: str
    kind: Literal["value", "order", "exact"]
    statement: str
    paper_value: float | None = None
    decimals: int | None = Field(default=None, ge=0)
    query: Query
    tolerance: str
    needs: Needs = Needs()
    reading: Literal["paper", "ours"] = "paper"
    explanation: str = ""
    explanation_of: Case | None = None
    cell: Cell | None = None

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit, 0 where none is stated."""
        return 0.0 if self.decimals is None else 0.5 * 10.0**-self.decimals

    @property
    def is_number(self) -> bool:
        """Whether the paper states something; a table's row of ours alone does not."""
        return self.cell is None or self.paper_value is not None


class Claims(Closed):
    """A claims file, written out: one claim for each number and sentence."""

    paper: str
    tolerances: dict[str, Tolerance]
    claims: list[Claim]

    @model_validator(mode="after")
    def _consistent(self) -> Claims:
        seen: set[str] = set()
        for claim in self.claims:
            if claim.id in seen:
                raise ValueError(f"claim '{claim.id}': the id is there twice; rename one")
            seen.add(claim.id)
            if claim.tolerance not in self.tolerances:
                raise ValueError(
                    f"claim '{claim.id}': tolerance '{claim.tolerance}' is not one of "
                    f"{', '.join(self.tolerances)}; define it or use one of these"
                )
            rule = self.tolerances[claim.tolerance].rule
            allowed = RULES[claim.query.form]
            if rule not in allowed:
                raise ValueError(
                    f"claim '{claim.id}': tolerance '{claim.tolerance}' has rule {rule}, but a "
                    f"query of form {claim.query.form} takes {', '.join(allowed)}; use one of these"
                )
            compared = claim.query.form in ("runs", "column") and claim.is_number
            if compared and claim.paper_value is None and rule not in ("at_most", "at_least"):
                raise ValueError(f"claim '{claim.id}': paper_value is missing; give it")
        return self

    def numbers(self) -> list[Claim]:
        """Claims that the paper makes, in the file's order."""
        return [claim for claim in self.claims if claim.is_number]
