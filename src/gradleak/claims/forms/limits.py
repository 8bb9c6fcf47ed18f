"""Sentences about how often a limit is met."""

from typing import Literal, Self

import pandas as pd
from pydantic import Field, model_validator

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import UNIT_COLUMN, UNITS, Form, Unit, counted, enough, shared
from gradleak.claims.forms.paired import RUN
from gradleak.claims.metrics import HIGHER_IS_BETTER, label, worst
from gradleak.claims.outcome import Outcome, failed, holds, joined, plainly
from gradleak.claims.printed import Printed
from gradleak.claims.statement import Answers, Closed, Statement, Tolerance, Where
from gradleak.claims.statistics import interval_of_mean, p_below_zero, p_majority


class Limit(Form):
    """Most units have all their runs beyond the amount in the tolerance.

    With `best_of` only the best of the attacks in `where`, or the best answer, counts for each seed
    and image.
    """

    form: Literal["limit"]
    metric: str
    unit: Unit | Literal["batch"]
    where: Where
    answers: Answers = "own"
    best_of: Literal["attack", "answer"] | None = None
    rules = ("at_most", "at_least")
    asks = "both"

    @model_validator(mode="after")
    def _several(self) -> Self:
        if self.best_of == "attack" and not isinstance(self.where.get("attack"), list):
            raise ValueError("best_of needs a list of attacks in where; list them")
        if self.best_of == "answer" and self.answers != "all":
            raise ValueError("best_of: answer needs answers: all; add it")
        return self

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge a limit by the sign test: a unit succeeds if all its runs meet the limit.

        A failed run has an infinite error, which meets `at_least` but never `at_most`.
        """
        found = evidence.runs(self.where, self.metric, self.answers)
        found = found.assign(met=found["value"].fillna(worst(self.metric)))
        if self.best_of:
            groups = found.groupby(["model", *RUN], sort=True)["met"]
            best = groups.idxmax() if self.metric in HIGHER_IS_BETTER else groups.idxmin()
            found = found.loc[best]
        met = tolerance.meets(found["met"])
        if isinstance(evidence, Printed):
            return plainly(found.loc[~met, "text"])
        units = met.groupby(found[UNIT_COLUMN[self.unit]]).all()
        enough(units.size, self.unit)
        right = int(units.sum())
        p = p_majority(right, units.size)
        words = (
            f"{right} of {units.size} {UNITS[self.unit]} are all "
            f"{tolerance.rule.replace('_', ' ')} {tolerance.limit:g}, p = {p:.2g}"
            f"{shared(self.unit, units.size, found['seed'], found['batch'])}"
        )
        values = found.loc[found["ok"], "value"]
        ours, low, high = (float(values.quantile(q)) for q in (0.5, 0.025, 0.975))
        ok = p < tolerance.alpha
        return Outcome(holds(ok), words, ours, low, high, len(found), len(values))

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        return f"median over runs of {label(self.metric, self.metric)}"

    def interval(self, tolerance: Tolerance) -> str:
        """See `Form.interval`."""
        return "95 % of the runs"


class Measured(Closed):
    """A metric of a selection; `amount` overrides the tolerance's for another metric."""

    metric: str = "mse"
    where: Where = Field(default_factory=dict)
    amount: float | None = None


class Share(Form):
    """`more` meets the limit in the tolerance more often than `less`, on the same units."""

    form: Literal["share"]
    unit: Unit | Literal["batch"]
    where: Where = Field(default_factory=dict)
    answers: Answers = "all"
    more: Measured
    less: Measured
    rules = ("at_most", "at_least")
    words = "share of starts that meet the limit, the one side's less the other's"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge which of two meets a limit more often: Wilcoxon's signed ranks over units.

        A unit's value is the share of its runs that meet the limit; every restart counts, and a
        failed one does not meet it. Our number is the mean difference, with its 95 % interval.
        """
        counts: dict[str, tuple[int, int]] = {}
        seeds: set[str] = set()
        shares: list[pd.Series] = []
        for part in (self.more, self.less):
            where = {**self.where, **part.where}
            found = evidence.runs(where, part.metric, self.answers)
            # Two metrics of the same runs count them once, as ok if both are.
            same, ok = str(sorted(where.items())), int(found["ok"].sum())
            counts[same] = len(found), min(ok, counts.get(same, (0, ok))[1])
            seeds.update(found["seed"])
            met = found["ok"] & tolerance.meets(found["value"], part.amount)
            shares.append(met.groupby(found[UNIT_COLUMN[self.unit]]).mean())
        common = shares[0].index.intersection(shares[1].index)
        more, less = (found[common].to_numpy(dtype=float) for found in shares)
        enough(common.size, self.unit)
        p = p_below_zero(less - more)
        low, high = interval_of_mean(more - less, log=False)
        units = counted(self.unit, common.size, seeds)
        words = f"{more.mean():.0%} against {less.mean():.0%}, p = {p:.2g} over {units}"
        n, n_ok = (sum(column) for column in zip(*counts.values(), strict=True))
        lost = failed(n, n_ok, " and do not meet it")
        ours = float((more - less).mean())
        return Outcome(holds(p < tolerance.alpha), joined(words, lost), ours, low, high, n, n_ok)
