"""Best images of batches: those of one attack against those of others."""

import math
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from gradleak.claims import metrics
from gradleak.claims.evidence import Evidence
from gradleak.claims.forms import base
from gradleak.claims.forms.base import Form
from gradleak.claims.forms.paired import Better
from gradleak.claims.forms.runs import Runs, by_batch, zero_for_missed
from gradleak.claims.outcome import NotJudged, Outcome, failed, joined, plainly, tested
from gradleak.claims.printed import Printed, texts
from gradleak.claims.statement import Statement, Tolerance, Where, describe
from gradleak.claims.statistics import FAILED_LOG, LEVEL, bonferroni, interval_of_mean, p_words


class Best(Form):
    """Best image of each batch by one attack against the best by another; all must hold.

    Only batches that both attacks tried count, so that an attack on more batches has no advantage.
    An attack that answers with one image of a batch is compared by that image.
    """

    form: Literal["best"]
    metric: str
    where: Where = Field(default_factory=dict)
    comparisons: list[Better] = Field(min_length=1)
    rules = ("alpha",)
    asks = "both"

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge by Wilcoxon's signed ranks over batches; all comparisons must be significant.

        Our number is the mean difference of the least clear one, `better` less `than`. An image
        that an attack did not find counts as 0 of a metric that is better if higher; a batch
        without any value is worse than all others, and counts against the sentence if both lost it.
        """
        if isinstance(evidence, Printed):
            return self._by_printed(evidence)
        results: list[tuple[float, float, float, np.ndarray]] = []
        runs = worked = 0
        for pair in self.comparisons:
            sides = [self._found(evidence, where) for _, where in pair]
            runs, worked = (
                runs + sum(map(len, sides)),
                worked + sum(int(s["ok"].sum()) for s in sides),
            )
            gaps = self._gaps(sides)
            base.enough(gaps.size, "batch")
            costs = -gaps if self._higher else gaps
            results.append((*base.both_sides(costs), float(costs.mean()), gaps))
        p, _, _, gaps = max(results, key=lambda result: (result[0], result[2]))
        p_against = bonferroni(result[1] for result in results)
        words = f"{p_words(p)} over the best images of {gaps.size} batches"
        if len(results) > 1:
            words += f", the largest of {len(results)} comparisons"
        words = joined(words, failed(runs, worked, " or were missed"))
        verdict = tested(p, p_against, tolerance.alpha)
        n, n_ok = gaps.size, int((np.abs(gaps) < FAILED_LOG).sum())
        return Outcome(verdict, words, *_interval(gaps), n, n_ok, p=p, p_against=p_against)

    @property
    def _higher(self) -> bool:
        return self.metric in metrics.HIGHER_IS_BETTER

    def _found(self, evidence: Evidence, where: Where) -> pd.DataFrame:
        found = evidence.runs({**self.where, **where}, self.metric)
        return zero_for_missed(found) if self._higher else found

    def _gaps(self, sides: list[pd.DataFrame]) -> np.ndarray:
        """Differences of best values over batches that both sides tried."""
        bests = [by_batch(found, "max" if self._higher else "min") for found in sides]
        one, other = (best.groupby(["seed", "batch"]).mean() for best in bests)
        common = one.index.intersection(other.index)
        if common.empty:
            raise NotJudged(f"data: no batch in common for {describe(self.where)}")
        worse = -FAILED_LOG if self._higher else FAILED_LOG
        first, second = one[common], other[common]
        gaps = (first - second).where(second.notna(), -worse)
        return gaps.where(first.notna(), worse).to_numpy()

    def _by_printed(self, printed: Printed) -> Outcome:
        """Compare the paper's cells about best images, where it prints both."""
        wrong = []
        for pair in self.comparisons:
            one, other = (self._cells(printed, where) for _, where in pair)
            for key in one.keys() & other.keys():
                gap = one[key].value - other[key].value
                if (gap < 0) if self._higher else (gap > 0):
                    wrong.append(f"{one[key].statement} {other[key].statement}")
        return plainly(wrong)

    def _cells(self, printed: Printed, where: Where) -> dict[str, Statement]:
        """Printed best values of a selection, by network and defence."""
        wanted, take = texts({**self.where, **where}), "max" if self._higher else "min"
        out: dict[str, Statement] = {}
        for one in printed.numbers:
            query: Any = getattr(one, "query", None)
            if not isinstance(query, Runs) or (query.take, query.metric) != (take, self.metric):
                continue
            own = {"defence": ["none"], **texts(query.where)}
            if all(own.get(key) == value for key, value in wanted.items()):
                out[f"{own.get('model')} {own['defence']}"] = one
        return out

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        wheres = (where for pair in self.comparisons for _, where in pair)
        return base.experiments(*({**self.where, **where} for where in wheres))

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        least = "" if len(self.comparisons) == 1 else ", of the least clear comparison"
        side = "above" if self._higher else "below"
        of = metrics.label(self.metric, self.metric)
        return f"mean difference of a batch's best {of}{least}; {side} 0 where it holds"


def _interval(gaps: np.ndarray) -> tuple[float, float, float]:
    """Mean difference and its interval; none if an attack lost a batch."""
    if np.any(np.abs(gaps) >= FAILED_LOG):
        return math.nan, math.nan, math.nan
    return float(gaps.mean()), *interval_of_mean(gaps, False, LEVEL)
