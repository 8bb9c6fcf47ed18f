"""What a claim asks of our results: closed models of its query, one for each form."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradleak.claims.margin import FACTS
from gradleak.losses import BINARY

Scalar = str | int | float
Where = dict[str, Scalar | list[Scalar]]
Unit = Literal["seed", "image"]
Answers = Literal["own", "all"]
Rule = Literal[
    "prediction", "mean", "factor", "absolute", "at_most", "at_least", "alpha", "equivalence"
]


# Tables with a row for each layer of a network; any other is one of our results, named by its file.
LAYERED = ("security", "rank")


class Closed(BaseModel):
    """A model that refuses unknown keys and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Runs(Closed):
    """Values of one metric over the runs (seeds, images) of a selection of scores.

    A run's answer is the attack's ``own`` choice unless `where` names an ``answer`` or a ``kind``;
    ``all`` takes every start and twin. With ``of: seeds`` a value is the mean over one seed's runs;
    with ``of: batches`` it is what `take` makes of one batch: the ``mean`` or ``max`` over its
    images, or how many of them are ``above`` (or at) `over`. With ``missing: zero`` an image that
    the attack did not find has the value 0, else it is a run that failed.
    """

    form: Literal["runs"]
    metric: str
    where: Where
    answers: Answers = "own"
    of: Literal["runs", "seeds", "batches"] = "runs"
    take: Literal["mean", "max", "above"] | None = None
    over: float | None = None
    missing: Literal["failed", "zero"] = "failed"

    @model_validator(mode="after")
    def _of_batches(self) -> Runs:
        if (self.of == "batches") != (self.take is not None):
            raise ValueError("of: batches and take belong together; give both or neither")
        if (self.take == "above") != (self.over is not None):
            raise ValueError("take: above and over belong together; give both or neither")
        if self.missing == "zero" and self.of != "batches":
            raise ValueError("missing: zero needs of: batches; add it or leave missing out")
        return self


class Side(Closed):
    """A column of the security or rank files, or of another of our tables, by its name.

    Of the former two `total` sums it over a model's layers, and ``position`` in `where` is the
    layer's place in its model, from 1.
    """

    column: str
    where: Where
    total: bool = False
    table: str = "security"

    @model_validator(mode="after")
    def _of_layers(self) -> Side:
        if self.total and self.table not in LAYERED:
            raise ValueError(f"total sums over layers of {' or '.join(LAYERED)}; leave it out")
        return self


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


class Estimates(Closed):
    """Estimates with a standard error, such as accuracies, compared; all must hold.

    A side names one row of a table of ours, whose column ``error`` has the standard error. `less`
    is below `more`, or `more` is at least the tolerance's amount above it.
    """

    form: Literal["estimates"]
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


class Point(Closed):
    """The runs at one value of x."""

    x: float
    where: Where


class Trend(Closed):
    """Spearman's correlation between x and the mean over a batch's images, batch by batch."""

    form: Literal["trend"]
    metric: str
    where: Where = {}
    points: list[Point] = Field(min_length=4)
    sign: Literal["negative", "positive"]
    missing: Literal["failed", "zero"] = "failed"


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


class Relation(Closed):
    """What numbers that the paper prints come to, and what it should be.

    `cells` are ids of claims, * for any part of one. `of`: their ``value`` (one cell), their
    ``mean``, the first less the second (``difference``), by how many percent the second exceeds
    the first (``increase``), or their number (``count``). It equals the number of the claim
    `equals`, or without one the claim's own.
    """

    of: Literal["value", "mean", "difference", "increase", "count"]
    cells: list[str] = Field(min_length=1)
    equals: str | None = None


class Arithmetic(Closed):
    """Printed numbers follow from others, within their rounding; all relations must hold."""

    form: Literal["arithmetic"]
    relations: list[Relation] = Field(min_length=1)


class Range(Closed):
    """Printed numbers lie from `low` to `high`: as many of `cells` as the tolerance says."""

    form: Literal["range"]
    cells: list[str] = Field(min_length=1)
    low: float
    high: float


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
    | Estimates
    | Compare
    | Close
    | Limit
    | Share
    | Correlation
    | Trend
    | Effect
    | Printed
    | Arithmetic
    | Range
    | Loss
    | Elsewhere,
    Field(discriminator="form"),
]

RULES: dict[str, tuple[str, ...]] = {
    "runs": ("prediction", "mean", "factor", "absolute", "at_most", "at_least"),
    "column": ("prediction", "absolute", "at_most", "at_least"),
    "columns": ("absolute",),
    "estimates": ("alpha", "at_least"),
    "compare": ("alpha",),
    "close": ("equivalence",),
    "limit": ("at_most", "at_least"),
    "share": ("at_most", "at_least"),
    "correlation": ("alpha",),
    "trend": ("alpha",),
    "effect": ("alpha",),
    "printed": ("absolute",),
    "arithmetic": ("absolute",),
    "range": ("at_least",),
    "loss": ("absolute",),
    "elsewhere": get_args(Rule),
}
