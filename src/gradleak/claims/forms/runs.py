"""Numbers over runs: single runs, means over images or seeds, and batches."""

import math
from dataclasses import replace
from typing import Literal, Self

import numpy as np
import pandas as pd
from pydantic import model_validator

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import EXTREMES, Form, experiments, percent
from gradleak.claims.metrics import HIGHER_IS_BETTER, LOGARITHMIC, label, may_be_zero, worst
from gradleak.claims.outcome import DIFFERS, EXCEEDS, NOT_JUDGED, Outcome, failed, holds, joined
from gradleak.claims.power import ONE_DRAW, TOO_WIDE, Window, alone, needed, widened
from gradleak.claims.statement import EVERY, Answers, Statement, Tolerance, Where
from gradleak.claims.statistics import bootstrap_mean, prediction_interval

BATCH = ["model", "seed", "batch"]


class Runs(Form):
    """Values of one metric over the runs (seeds, images) of a selection of scores.

    With ``of: seeds`` a value is the mean over one seed's runs; with ``of: batches`` it is the
    ``mean`` or ``max`` over a batch's images, or the number of images ``above`` (or at) `over`, as
    given by `take`. With ``missing: zero`` an image that the attack did not find has the value 0,
    otherwise it is a failed run. `answers` as in `Evidence.runs`.
    """

    form: Literal["runs"]
    metric: str
    where: Where
    answers: Answers = "own"
    of: Literal["runs", "seeds", "batches"] = "runs"
    take: Literal["mean", "max", "above"] | None = None
    over: float | None = None
    missing: Literal["failed", "zero"] = "failed"
    rules = ("prediction", "mean", *EVERY)

    @model_validator(mode="after")
    def _of_batches(self) -> Self:
        if (self.of == "batches") != (self.take is not None):
            raise ValueError("of: batches and take belong together; give both or neither")
        if (self.take == "above") != (self.over is not None):
            raise ValueError("take: above and over belong together; give both or neither")
        if self.missing == "zero" and self.of != "batches":
            raise ValueError("missing: zero needs of: batches; add it or leave missing out")
        return self

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge a metric over runs; our number is the median, since the interval is of single runs.

        In the median failed runs count as worst; if half or more failed there is none, and a number
        of the paper's is not met. The interval is over successful runs. With rule ``mean`` our
        number is the arithmetic mean over images, each the mean of its successful runs.
        """
        found = evidence.runs(self.where, self.metric, self.answers)
        if self.of == "batches":
            return self._judge_batches(claim, tolerance, found)
        mean = tolerance.rule == "mean"
        if self.of == "seeds" and not mean:
            # A seed failed if one of its runs did.
            groups = found.groupby("seed")[["value", "ok"]].agg({"value": "mean", "ok": "all"})
            found = groups.assign(value=groups["value"].where(groups["ok"]))
        n, worked = len(found), found[found["ok"]]
        n_ok = len(worked)
        values = (worked.groupby("index")["value"].mean() if mean else worked["value"]).to_numpy()
        if tolerance.rule in EVERY:
            return exact(values, n, claim, tolerance)
        lost = failed(n, n_ok, " and are not in the mean" if mean else "")
        if values.size < 2:
            ours = float(values[0]) if values.size else math.nan
            few = f"scale: one {'image' if mean else 'run'} has no interval"
            return Outcome(DIFFERS if lost else NOT_JUDGED, lost or few, ours, n=n, n_ok=n_ok)
        if mean:
            ours = float(values.mean())
            note = f"; standard error {values.std(ddof=1) / math.sqrt(values.size):.2g}"
        else:
            every, note = np.concatenate([values, np.full(n - n_ok, worst(self.metric))]), ""
            ours = float(np.median(every)) if n_ok > n / 2 else math.nan
        low, high = widened(*interval(values, self.metric, tolerance), self.metric, tolerance)
        made = Outcome("", lost, ours, low, high, n, n_ok, units=values.size)
        if claim.paper_value is not None and n_ok <= n / 2:
            return replace(made, verdict=DIFFERS)
        return placed(made, claim, self.metric, values, tolerance, note)

    def _judge_batches(
        self, claim: Statement, tolerance: Tolerance, found: pd.DataFrame
    ) -> Outcome:
        """Judge values of batches; our number is their mean, `n` and `n_ok` count images.

        A single batch has no interval: one over its images would say nothing of another batch.
        """
        n, n_ok, zero = len(found), int(found["ok"].sum()), self.missing == "zero"
        missed = int(found["missed"].sum())
        said = f"{missed} of {n} images were missed and {'count as 0' if zero else 'are left out'}"
        lost = joined(said if missed else "", failed(n, n_ok + missed))
        found = zero_for_missed(found) if zero else found
        every = by_batch(found, str(self.take), self.over)
        values = every.dropna().to_numpy()
        ours = float(values.mean()) if values.size else math.nan
        if tolerance.rule in EVERY:
            judged = exact(values, len(every), claim, tolerance)
            words = joined(f"{judged.reason} ({_batches(len(every))})", lost)
            return replace(judged, reason=words, ours=ours, n=n, n_ok=n_ok, units=len(every))
        images = found["value"].dropna().to_numpy()
        made = Outcome(DIFFERS, lost, ours, n=n, n_ok=n_ok)
        if images.size <= n / 2:
            return made
        if values.size < 2:
            words = joined(f"{ONE_DRAW}: one batch has no interval", lost)
            return replace(made, verdict=NOT_JUDGED, reason=words)
        low, high = widened(*interval(values, self.metric, tolerance), self.metric, tolerance)
        made = replace(made, verdict="", low=low, high=high, units=values.size)
        note = f" ({_batches(values.size)})"
        return placed(made, claim, self.metric, values, tolerance, note)

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return experiments(self.where)

    def ours(self, tolerance: Tolerance) -> str:
        """See `Form.ours`."""
        name = label(self.metric, self.metric)
        if self.of == "batches":
            above = f"count of images whose {name} is {self.over} or more"
            taken = {"max": f"largest {name}", "mean": f"mean {name}"}.get(self.take or "", above)
            return f"mean over batches of each one's {taken}"
        if self.of == "seeds":
            return f"median over draws of the weights of each one's mean {name}"
        return f"{'mean over images' if tolerance.rule == 'mean' else 'median over runs'} of {name}"

    def interval(self, tolerance: Tolerance) -> str:
        """See `Form.interval`."""
        return of_numbers(tolerance, {"runs": "run", "seeds": "draw", "batches": "batch"}[self.of])


def of_numbers(tolerance: Tolerance, further: str) -> str:
    """Describe the interval of a number; `further` names one more value."""
    if tolerance.rule in EVERY:
        return EXTREMES
    widened = ", widened" if tolerance.factor > 1 or tolerance.margin > 0 else ""
    what = "the mean" if tolerance.rule == "mean" else f"one further {further}"
    return f"{percent(tolerance.level)}: {what}{widened}"


def interval(values: np.ndarray, metric: str, tolerance: Tolerance) -> tuple[float, float]:
    """Compute the interval for a tolerance of rule prediction or mean, before it is widened."""
    if tolerance.rule == "mean":
        return bootstrap_mean(values, tolerance.level)
    return prediction_interval(values, metric in LOGARITHMIC, tolerance.level)


def placed(
    made: Outcome, claim: Statement, metric: str, values: np.ndarray, tolerance: Tolerance,
    note: str,
) -> Outcome:  # fmt: skip
    """Compare the paper's value, if any, with our interval over `values`.

    Inside, or on which side; inside one that hardly any value would miss, it is not judged.
    """
    if claim.paper_value is None:
        return made
    window = Window(claim, metric, made.low, made.high, interval(values, metric, tolerance))
    verdict, words = holds(True), "the paper's value lies in our interval"
    if not window.holds:
        better = (claim.value < made.low) == (metric in HIGHER_IS_BETTER)
        verdict = EXCEEDS if better else DIFFERS
        words = f"ours is {'better' if better else 'worse'} than the paper's beyond the tolerance"
    elif window.too_wide:
        verdict, words = NOT_JUDGED, too_wide(window, values, tolerance)
    made = replace(made, verdict=verdict, window=str(window))
    return replace(made, reason=joined(words + note, made.reason))


def too_wide(window: Window, values: np.ndarray, tolerance: Tolerance) -> str:
    """Say why an interval that holds the paper's value shows nothing, and what would."""
    enough = needed(values, window, tolerance)
    more = f"n = {enough} would do"
    if enough is None:
        more = "no number of runs would do"
        if alone(values, window, tolerance):
            more = "the tolerance and the paper's ± alone are as wide"
    holds_zero = "holds 0" if may_be_zero(window.metric) else f"is {window}"
    return f"{TOO_WIDE}: the window of values that agree {holds_zero}; {more}"


def exact(values: np.ndarray, n: int, claim: Statement, tolerance: Tolerance) -> Outcome:
    """Judge values that must all be within an amount; `n` is the number tried."""
    if tolerance.rule == "absolute":
        allowed = tolerance.limit + claim.rounding
        right = np.abs(values - claim.value) <= allowed * (1 + 1e-12) + 1e-12
        words = f"all {'equal to' if allowed == 0 else f'within {allowed:g} of'} the paper's value"
    else:
        right = tolerance.meets(values)
        words = f"all {tolerance.rule.replace('_', ' ')} {tolerance.limit:g}"
    n_ok = int(values.size)
    ok = bool(np.all(right)) and n_ok == n
    words = words if ok or n_ok < n else f"not {words}"
    words = ", but ".join(filter(None, [words, failed(n, n_ok)]))
    made = Outcome(holds(ok), words, n=n, n_ok=n_ok)
    if not n_ok:
        return made
    ours, low, high = (float(make(values)) for make in (np.median, np.min, np.max))
    return replace(made, ours=ours, low=low, high=high)


def by_batch(found: pd.DataFrame, take: str, over: float | None = None) -> pd.Series:
    """One value per batch of runs as of `Runs.take`, NaN if none of its images has a value."""
    keys = [found[key] for key in BATCH]
    if take != "above":
        return found["value"].groupby(keys).agg(take)
    tried = (found["ok"] | found["missed"]).groupby(keys).any()
    return (found["value"] >= over).groupby(keys).sum().where(tried).astype(float)


def zero_for_missed(found: pd.DataFrame) -> pd.DataFrame:
    """Set runs of images that the attack did not find to 0."""
    return found.assign(value=found["value"].mask(found["missed"], 0.0))


def _batches(count: int) -> str:
    return "one batch" if count == 1 else f"{count} batches"
