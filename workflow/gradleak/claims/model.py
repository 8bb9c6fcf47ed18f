"""What a claim is: closed models of a claims file after its grids and loops are written out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradleak.claims.margin import FACTS
from gradleak.losses import BINARY

Scalar = str | int | float
Where = dict[str, Scalar | list[Scalar]]
Unit = Literal["seed", "image"]
Answers = Literal["own", "all"]


class Closed(BaseModel):
    """A model that refuses unknown keys and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Tolerance(Closed):
    """How far ours may be from the paper's, and why; fixed before the first recorded run.

    ``prediction`` (of one further run) and ``mean`` (of the arithmetic mean over images) use
    `level` and widen by `factor` (in MSE; for a PSNR its dB); ``factor`` compares with our median;
    ``absolute``, ``at_most``, ``at_least`` and ``equivalence`` use `amount`; tests use `alpha`.
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
    """Values of one metric over the runs (seeds, images) of a selection of scores.

    A run's answer is the attack's ``own`` choice unless `where` names an ``answer`` or a ``kind``;
    ``all`` takes every start and twin. With ``of: seeds`` a value is the mean over one seed's runs.
    """

    form: Literal["runs"]
    metric: str
    where: Where
    answers: Answers = "own"
    of: Literal["runs", "seeds"] = "runs"


class Side(Closed):
    """A column of the security or rank files; `total` sums it over a model's layers.

    ``position`` in `where` is the layer's place in its model, from 1.
    """

    column: str
    where: Where
    total: bool = False
    table: Literal["security", "rank"] = "security"


class Column(Side):
    """Values of a column, such as c(M) or RA-i."""

    form: Literal["column"]


class Less(Closed):
    """`less` is below `more`."""

    less: Side
    more: Side


class Equal(Closed):
    """`one` and `other` are equal, value by value."""

    one: Side
    other: Side


class Columns(Closed):
    """Deterministic comparisons; all must hold."""

    form: Literal["columns"]
    comparisons: list[Less | Equal] = Field(min_length=1)


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
    answers: Answers = "own"
    comparisons: list[Better] = Field(min_length=1)


class Pair(Closed):
    """Two selections that are compared run by run."""

    one: Where
    other: Where


class Close(Closed):
    """`one` and `other` differ little, on the value itself or on log10 of it.

    With `one_is` only one direction counts: ``not_better`` or ``not_worse`` by more than that.
    """

    form: Literal["close"]
    metric: str = "mse"
    measure: Literal["value", "log"]
    unit: Unit
    where: Where = {}
    answers: Answers = "own"
    one: Where
    other: Where
    one_is: Literal["alike", "not_better", "not_worse"] = "alike"


class Limit(Closed):
    """Most units have all their runs beyond the amount in the tolerance.

    With `best_of` only the best of the attacks in `where`, or the best answer, counts for each
    seed and image.
    """

    form: Literal["limit"]
    metric: str
    unit: Unit | Literal["batch"]
    where: Where
    answers: Answers = "own"
    best_of: Literal["attack", "answer"] | None = None

    @model_validator(mode="after")
    def _several(self) -> Limit:
        if self.best_of == "attack" and not isinstance(self.where.get("attack"), list):
            raise ValueError("best_of needs a list of attacks in where; list them")
        if self.best_of == "answer" and self.answers != "all":
            raise ValueError("best_of: answer needs answers: all; add it")
        return self


class Measured(Closed):
    """A metric of a selection; `amount` stands for the tolerance's where the metric is another."""

    metric: str = "mse"
    where: Where = {}
    amount: float | None = None


class Share(Closed):
    """`more` meets the limit in the tolerance more often than `less`, on the same units.

    Every start counts, and a failed one does not meet the limit.
    """

    form: Literal["share"]
    unit: Unit | Literal["batch"]
    where: Where = {}
    answers: Answers = "all"
    more: Measured
    less: Measured


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


class Loss(Closed):
    """A fact about the margin losses themselves (R-GAP Figure 1); see `gradleak.claims.margin`."""

    form: Literal["loss"]
    fact: str
    losses: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _known(self) -> Loss:
        for key, given, known in (
            ("fact", [self.fact], FACTS),
            ("losses", self.losses, BINARY),
        ):
            unknown = [name for name in given if name not in known]
            if unknown:
                raise ValueError(
                    f"{key} '{unknown[0]}' is not one of {', '.join(known)}; use one of these"
                )
        return self


class Elsewhere(Closed):
    """A sentence that is measured in another file, which no deterministic table can hold."""

    form: Literal["elsewhere"]
    reason: str = Field(min_length=1)


Query = Annotated[
    Runs
    | Column
    | Columns
    | Compare
    | Close
    | Limit
    | Share
    | Correlation
    | Effect
    | Printed
    | Loss
    | Elsewhere,
    Field(discriminator="form"),
]

RULES: dict[str, tuple[str, ...]] = {
    "runs": ("prediction", "mean", "factor", "absolute", "at_most", "at_least"),
    "column": ("prediction", "absolute", "at_most", "at_least"),
    "columns": ("absolute",),
    "compare": ("alpha",),
    "close": ("equivalence",),
    "limit": ("at_most", "at_least"),
    "share": ("at_most", "at_least"),
    "correlation": ("alpha",),
    "effect": ("alpha",),
    "printed": ("absolute",),
    "loss": ("absolute",),
    "elsewhere": ("absolute",),
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

    A claim whose `reading` is ``ours`` is stricter than the paper's sentence, or another of our
    attacks beside the paper's number, so the paper's own table cannot refute it. `spread` is what
    the paper prints after ±, `printed` a number as it prints it, and `contradicted_by` the place in
    the paper that says otherwise. `explanation` was written for the run `explanation_of`.
    """

    id: str = Field(min_length=1)
    paper: str
    locator: str
    kind: Literal["value", "order", "exact"]
    statement: str
    paper_value: float | None = None
    decimals: int | None = None
    spread: float = Field(default=0.0, ge=0)
    printed: str = ""
    query: Query
    tolerance: str
    needs: Needs = Needs()
    reading: Literal["paper", "ours"] = "paper"
    contradicted_by: str = ""
    explanation: str = ""
    explanation_of: Case | None = None
    cell: Cell | None = None

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit, 0 where none is stated."""
        return 0.0 if self.decimals is None else 0.5 * 10.0**-self.decimals

    @property
    def shown(self) -> str:
        """The paper's value as it prints it, or with four decimals."""
        value = self.paper_value
        return self.printed or ("" if value is None else f"{value:.4f}")

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
