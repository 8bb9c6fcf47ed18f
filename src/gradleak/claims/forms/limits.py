"""Sentences about limits, tested over units: most keep one, or one side does more often."""

from dataclasses import replace
from typing import Literal, Self

import pandas as pd
from pydantic import Field, model_validator

from gradleak.claims import metrics
from gradleak.claims.evidence import Evidence
from gradleak.claims.forms import base
from gradleak.claims.forms.base import Form, Unit
from gradleak.claims.forms.paired import RUN
from gradleak.claims.outcome import NOT_JUDGED, Outcome, failed, joined, plainly, tested
from gradleak.claims.printed import Printed
from gradleak.claims.statement import Answers, Closed, Statement, Tolerance, Where
from gradleak.claims.statistics import LEVEL, interval_of_mean, p_majority, p_words


class Limit(Form):
    """Most units have all their runs beyond the amount in the tolerance.

    With `best_of` only the best of the attacks in `where`, or the best answer, counts for each seed
    and image.
    """

    form: Literal["limit"]
    metric: str
    unit: Unit
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
        """Judge by the sign test; a failed run has an infinite error: `at_least`, not `at_most`."""
        found = evidence.runs(self.where, self.metric, self.answers)
        found = found.assign(met=found["value"].fillna(metrics.worst(self.metric)))
        if self.best_of:
            groups = found.groupby(["model", *RUN], sort=True)["met"]
            best = groups.idxmax() if self.metric in metrics.HIGHER_IS_BETTER else groups.idxmin()
            found = found.loc[best]
        met = tolerance.meets(found["met"])
        if isinstance(evidence, Printed):
            return plainly(found.loc[~met, "text"])
        values = found.loc[found["ok"], "value"]
        ours, low, high = (float(values.quantile(q)) for q in (0.5, 0.025, 0.975))
        unit = base.independent(self.unit, found)
        units = met.groupby(found[base.UNIT_COLUMN[unit]]).all()
        made = Outcome(NOT_JUDGED, base.few(units.size, unit), ours, low, high)
        made = replace(made, n=len(found), n_ok=len(values))
        if made.reason:
            return made
        right = int(units.sum())
        p, p_against = (p_majority(one, units.size) for one in (right, units.size - right))
        are = "are" if units.size == len(found) else "are all"
        words = (
            f"{right} of {units.size} {base.UNITS[unit]} {are} "
            f"{tolerance.rule.replace('_', ' ')} {tolerance.limit:g}, {p_words(p)}"
            f"{base.shared(unit, found['seed'])}"
        )
        verdict = tested(p, p_against, tolerance.alpha)
        return replace(made, verdict=verdict, reason=words, p=p, p_against=p_against)

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return base.experiments(self.where)

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        return f"median over runs of {metrics.label(self.metric, self.metric)}"

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
    unit: Unit
    where: Where = Field(default_factory=dict)
    answers: Answers = "all"
    more: Measured
    less: Measured
    rules = ("at_most", "at_least")
    words = "share of starts that meet the limit, the one side's less the other's"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge by Wilcoxon's signed ranks over units, each with the share of its runs.

        Every restart counts; a failed one does not meet the limit. Our number is the mean
        difference, with its 95 % interval.
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
            unit = base.independent(self.unit, found)
            met = found["ok"] & tolerance.meets(found["value"], part.amount)
            shares.append(met.groupby(found[base.UNIT_COLUMN[unit]]).mean())
        common = shares[0].index.intersection(shares[1].index)
        more, less = (found[common].to_numpy(dtype=float) for found in shares)
        base.enough(common.size, unit)
        p, p_against = base.both_sides(less - more)
        low, high = interval_of_mean(more - less, False, LEVEL)
        units = base.counted(unit, common.size, seeds)
        words = f"{more.mean():.0%} against {less.mean():.0%}, {p_words(p)} over {units}"
        n, n_ok = (sum(column) for column in zip(*counts.values(), strict=True))
        lost = failed(n, n_ok, " and do not meet it")
        made = Outcome(tested(p, p_against, tolerance.alpha), joined(words, lost))
        made = replace(made, ours=float((more - less).mean()), low=low, high=high, n=n, n_ok=n_ok)
        return replace(made, p=p, p_against=p_against)

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return base.experiments(*({**self.where, **part.where} for part in (self.more, self.less)))
