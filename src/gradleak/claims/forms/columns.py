"""Columns of our tables: values, shares, order of two; rank correlations."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field
from scipy import stats

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms import runs
from gradleak.claims.forms.base import Form, experiments
from gradleak.claims.metrics import worst
from gradleak.claims.outcome import (
    DIFFERS,
    EXCEEDS,
    NOT_JUDGED,
    REPRODUCED,
    NotJudged,
    Outcome,
    holds,
    joined,
    plainly,
    tested,
)  # fmt: skip
from gradleak.claims.power import widened
from gradleak.claims.printed import Printed
from gradleak.claims.statement import EVERY, Closed, Side, Statement, Tolerance, Where, describe
from gradleak.claims.statistics import LEVEL, p_words, spearman, wilson
from gradleak.errors import ConfigError

Sign = Literal["negative", "positive"]


class Column(Form, Side):
    """Values of a column, such as c(M) or RA-i.

    `units` names a column with the number of units behind each value, such as ``batches``; without
    it a value is one, in a table without that column too. `ends` names columns with the least and
    the largest of these units, which have to agree as well. `shared` says what all of them have in
    common, such as one training.
    """

    form: Literal["column"]
    units: str = ""
    ends: list[str] = Field(default_factory=list)
    shared: str = ""
    rules = ("prediction", *EVERY)
    words = "what our table has; of several values the median"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge a column of a table: every value within the tolerance, or one further draw."""
        values = evidence.column(self)
        n = int(values.size)
        if tolerance.rule != "prediction":
            if self.units not in evidence.tables.get(self.table, ()):
                return runs.exact(values, n, claim, tolerance)
            behind = int(self._beside(self.units, evidence).sum())
            every = [values, *(self._beside(name, evidence) for name in self.ends)]
            made = runs.exact(np.concatenate(every), n * len(every), claim, tolerance)
            words = f"over {behind} {self.units}" if behind > 1 else ""
            reason = ", ".join(filter(None, [made.reason, words, self.shared]))
            ours = float(np.median(values))
            return replace(made, reason=reason, ours=ours, n=behind, n_ok=behind)
        made = Outcome("", "", float(np.median(values)), n=n, n_ok=n)
        if n < 2:
            return replace(made, verdict=NOT_JUDGED, reason="scale: one value has no interval")
        low, high = widened(*runs.interval(values, self.column, tolerance), self.column, tolerance)
        made = replace(made, low=low, high=high)
        made = runs.placed(made, claim, self.column, values, tolerance, "")
        if made.verdict in (EXCEEDS, DIFFERS):  # a column has no better side
            words = "the paper's value does not lie in our interval"
            return replace(made, verdict=DIFFERS, reason=words)
        return made

    def _beside(self, column: str, evidence: Evidence) -> np.ndarray:
        """Another column in the same rows."""
        return evidence.column(Side(table=self.table, where=self.where, column=column))

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return [self.table]

    def interval(self, tolerance: Tolerance) -> str:
        """See `Form.interval`."""
        return runs.of_numbers(tolerance, "value")


class OfCases(Form):
    """A number of n cases, in columns ``ours`` and ``n`` of one row of a table."""

    table: str
    where: Where = Field(default_factory=dict)
    words = "share of the cases"

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return [self.table]

    def number(self, evidence: Evidence, column: str, claim: Statement) -> float:
        """Value of a column in the row."""
        side = Side(table=self.table, where=self.where, column=column)
        return only(evidence.column(side), side, claim)


class Proportion(OfCases):
    """A share of n cases against a limit; ``ours`` is the share."""

    form: Literal["proportion"]
    rules = ("at_least", "at_most")

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge by exact binomial tests: the share is beyond the limit, or short of it."""
        share, n = (self.number(evidence, name, claim) for name in ("ours", "n"))
        cases, hits, limit = round(n), round(share * n), tolerance.limit
        more = float(stats.binom.sf(hits - 1, cases, limit))
        fewer = float(stats.binom.cdf(hits, cases, limit))
        p, p_against = (more, fewer) if tolerance.rule == "at_least" else (fewer, more)
        words = f"{hits} of {cases}, binomial {p_words(p)}"
        low, high = wilson(share, cases, LEVEL)
        made = Outcome(tested(p, p_against, tolerance.alpha), words, share, low, high)
        return replace(made, n=cases, n_ok=cases, p=p, p_against=p_against)


class Sometimes(OfCases):
    """At least one of n cases; ``ours`` is how many.

    One case shows it. None is held against it only if so many were tried that even a rate of the
    tolerance's amount would hardly have left none.
    """

    form: Literal["sometimes"]
    rules = ("at_least",)

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge by one case, or by what rate is still possible where there is none."""
        found, n = (round(self.number(evidence, name, claim)) for name in ("ours", "n"))
        low, high = stats.binomtest(found, n).proportion_ci(1 - 2 * tolerance.alpha)
        made = Outcome(REPRODUCED, f"{found} of {n}", found / n, low, high, n, n)
        if found:
            return made
        p = (1 - tolerance.limit) ** n
        words = f"{made.reason}, a rate of up to {high:.0%} is not excluded".replace("%", " %")
        verdict = tested(1.0, p, tolerance.alpha)
        return replace(made, verdict=verdict, reason=words, p=1.0, p_against=p)

    def window(self, claim: Statement, tolerance: Tolerance) -> str:
        """See `Form.window`."""
        return "at least one"


class Less(Closed):
    """`less` is below `more`."""

    less: Side
    more: Side


class Equal(Closed):
    """`one` and `other` are equal, value by value."""

    one: Side
    other: Side


def told(pair: Less | Equal, evidence: Evidence) -> bool:
    """True unless the paper is the evidence and does not print both sides."""
    return not isinstance(evidence, Printed) or all(evidence.prints(side) for _, side in pair)


class Columns(Form):
    """Deterministic comparisons; all must hold."""

    form: Literal["columns"]
    comparisons: list[Less | Equal] = Field(min_length=1)
    rules = ("absolute",)
    words = "smallest gap between the two sides; above 0 where all of it holds"
    agrees = "all comparisons hold"
    asks = "both"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge all comparisons; our number is the smallest gap (two equal integers: 0.5)."""
        gaps = [(pair, _gap(pair, evidence)) for pair in self.comparisons if told(pair, evidence)]
        if isinstance(evidence, Printed):
            wrong = (pair for pair, gap in gaps if gap < 0)
            return plainly(" ".join(evidence.of(s).statement for _, s in pair) for pair in wrong)
        right, n = sum(gap > 0 for _, gap in gaps), len(gaps)
        words, least = f"{right} of {n} comparisons hold", min(gap for _, gap in gaps)
        # Without a test, a side with one random value is one draw.
        fewest = min(evidence.column(side).size for pair, _ in gaps for _, side in pair)
        return Outcome(holds(right == n), words, least, n=n, n_ok=n, units=int(fewest))

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return tables(self.comparisons)


def tables(pairs: Sequence[Less | Equal]) -> list[str]:
    """Name the tables of comparisons, each once."""
    return list(dict.fromkeys(side.table for pair in pairs for _, side in pair))


def _gap(pair: Less | Equal, evidence: Evidence) -> float:
    """Return how clearly a comparison holds, above 0 if it does."""
    first, second = (evidence.column(side) for _, side in pair)
    if isinstance(pair, Less):
        return float(second.min() - first.max())
    if first.size != second.size:
        raise NotJudged(f"data: {first.size} values of {pair.one.column} for {second.size}")
    return 0.5 - float(np.abs(first - second).max())


def only(values: np.ndarray, side: Side, claim: Statement) -> float:
    """Return the one value of a side that names one row; raise `ConfigError` if it has others."""
    if values.size != 1:
        raise ConfigError(
            f"claim '{claim.id}': table {side.table} has {values.size} rows for "
            f"{describe(side.where)}, and an estimate is one; name more in where."
        )
    return float(values[0])


def _signed(
    x: np.ndarray, y: np.ndarray, sign: Sign, alpha: float, over: str, n: int, n_ok: int
) -> Outcome:
    """Judge the sign of the correlation of x and y; its bootstrap interval must exclude 0."""
    rho, low, high, below = spearman(x, y, 1 - alpha)
    if math.isnan(rho):
        raise NotJudged(f"scale: {x.size} {over} give no rank correlation")
    # Two-sided, so that p < alpha where the interval excludes 0.
    p, p_against = (min(1.0, 2 * share) for share in (below, 1 - below))
    if sign == "positive":
        p, p_against = p_against, p
    words = f"Spearman's correlation over {x.size} {over}, bootstrap {p_words(p)}"
    made = Outcome(tested(p, p_against, alpha), words, rho, low, high, n, n_ok)
    return replace(made, p=p, p_against=p_against)


class Correlation(Form):
    """Spearman's correlation between two columns of the index table, one row per network."""

    form: Literal["correlation"]
    x: str
    y: str
    sign: Sign
    table: str = "copa_index"
    sided = 2
    rules = ("alpha",)
    words = "Spearman's rank correlation over networks"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """See `_signed`; a point is a network."""
        x, y, n_ok = evidence.networks(self.x, self.y, self.table)
        return _signed(x, y, self.sign, tolerance.alpha, "networks", int(x.size), n_ok)

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return [self.table]


class Point(Closed):
    """Runs at one value of x."""

    x: float
    where: Where


class Trend(Form):
    """Spearman's correlation between x and the mean over a batch's images, batch by batch."""

    form: Literal["trend"]
    metric: str
    where: Where = Field(default_factory=dict)
    points: list[Point] = Field(min_length=4)
    sign: Sign
    missing: Literal["failed", "zero"] = "failed"
    sided = 2
    rules = ("alpha",)
    words = "Spearman's rank correlation over batches"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge the sign of the rank correlation of x with the means of batches.

        The bootstrap resamples batches; a batch without any success counts as the worst.
        """
        xs: list[float] = []
        means: list[float] = []
        n = n_ok = 0
        for point in self.points:
            found = evidence.runs({**self.where, **point.where}, self.metric)
            n, n_ok = n + len(found), n_ok + int(found["ok"].sum())
            found = runs.zero_for_missed(found) if self.missing == "zero" else found
            means += runs.by_batch(found, "mean").fillna(worst(self.metric)).tolist()
            xs += [point.x] * (len(means) - len(xs))
        lost = f"{n - n_ok} of {n} images have no value of their own" if n_ok < n else ""
        both = np.array(xs), np.array(means)
        made = _signed(*both, self.sign, tolerance.alpha, "batches", n, n_ok)
        return replace(made, reason=joined(made.reason, lost))

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return experiments(*({**self.where, **point.where} for point in self.points))
