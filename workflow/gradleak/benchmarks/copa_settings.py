"""COPA's optimisers and starts against each other, on the same gradients."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gradleak.attacks.base import AttackerView
from gradleak.attacks.copa import Copa
from gradleak.attacks.run import Views, run_seed
from gradleak.claims import load
from gradleak.claims.paper import printed_runs
from gradleak.errors import NumericsError
from gradleak.metrics.image import mse
from gradleak.progress import progress
from gradleak.targets import TargetSet

# Limits that let each end by itself where it can. Adam never does: it gets the 8,000 steps of the
# authors' later work; a step of Levenberg-Marquardt holds up to 150 products with U and U^T.
LIMITS = {"lbfgs": 500, "levenberg_marquardt": 100, "adam": 8000}
STARTS: tuple[dict[str, Any], ...] = (
    {"start": "random", "hidden_spread": 0.05, "pull_back": "appendix_b"},
    {"start": "random", "hidden_spread": 0.2, "pull_back": "appendix_b"},
    {"start": "random", "hidden_spread": 0.5, "pull_back": "appendix_b"},
    {"start": "rgap", "hidden_spread": np.nan, "pull_back": "appendix_b"},
    {"start": "random", "hidden_spread": 0.05, "pull_back": "algorithm_1"},
    {"start": "rgap", "hidden_spread": np.nan, "pull_back": "algorithm_1"},
)
OPTIMISER_COLUMNS = [
    "model",
    "optimiser",
    "default",
    "limit",
    "runs",
    "failed",
    "relative_residual",
    "mse",
    "steps",
    "seconds",
]
START_COLUMNS = [
    "model",
    "name",
    "start",
    "hidden_spread",
    "pull_back",
    "default",
    "runs",
    "failed",
    "mse",
    "lowest",
    "highest",
    "paper_mse",
]


@dataclass(frozen=True)
class Problem:
    """One gradient to attack, and the original for the error."""

    view: AttackerView
    original: np.ndarray
    name: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """One run: NaN in all numbers if it failed."""

    name: str
    residual: float
    mse: float
    steps: float
    seconds: float


def problems(
    model_path: str, gradient_path: str, targets: TargetSet, seeds: int
) -> Iterator[Problem]:
    """Gradients of the first `seeds` draws of weights in a gradient file, one image each."""
    for view, seed, batch in Views(model_path, gradient_path, seeds):
        original = targets.inputs(batch)[0]
        yield Problem(view, original, targets.names[batch], run_seed(seed, batch))


def attempt(attack: Copa, problem: Problem) -> Outcome:
    """Run COPA once.

    `residual` is the largest ||U a(Y) − V|| / ||V|| of the layers behind another convolution
    (eq. 5 or 7, its penalty included), 0 for a network with one convolution; `steps` is the sum
    of their iterations.
    """
    begin = time.perf_counter()
    try:
        found = attack.run(problem.view, problem.seed)
    except NumericsError:
        return Outcome(problem.name, np.nan, np.nan, np.nan, time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    hidden = [facts for facts in found.layers if facts.equation in ("5", "7")]
    return Outcome(
        problem.name,
        max((facts.residual for facts in hidden), default=0.0),
        mse(problem.original, found.image),
        float(sum(facts.iterations for facts in hidden)),
        seconds,
    )


def geometric_mean(values: Iterable[float]) -> float:
    """exp(mean(log(values))), of the values that are finite; NaN if there are none."""
    kept = np.array([value for value in values if np.isfinite(value)])
    floor = np.finfo(float).tiny
    return float(np.exp(np.mean(np.log(np.maximum(kept, floor))))) if kept.size else np.nan


def _median(values: Iterable[float]) -> float:
    kept = [value for value in values if np.isfinite(value)]
    return float(np.median(kept)) if kept else np.nan


def _counts(outcomes: list[Outcome]) -> dict[str, int]:
    return {"runs": len(outcomes), "failed": sum(not np.isfinite(o.mse) for o in outcomes)}


def optimiser_rows(
    model: str,
    todo: list[Problem],
    default: dict[str, Any],
    limits: dict[str, int] = LIMITS,
) -> list[dict[str, Any]]:
    """COPA's layer problem minimised by each optimiser, all else as in `default`.

    Parameters
    ----------
    model
        Name for the rows.
    todo
        Gradients to attack.
    default
        Settings of `Copa`, the entry ``copa`` of ``attacks`` without its method.
    limits
        Optimisers, and their limits of steps.

    Returns
    -------
    list
        A row per optimiser: median relative residual and steps of the nonlinear layers,
        geometric mean of the MSE, median seconds of one attack.
    """
    rows = []
    for optimiser, limit in limits.items():
        attack = Copa(**{**default, "optimiser": optimiser, "iterations": limit})
        seen = progress(todo, f"images, {model} by {optimiser}")
        outcomes = [attempt(attack, problem) for problem in seen]
        rows.append(
            {
                "model": model,
                "optimiser": optimiser,
                "default": optimiser == default["optimiser"],
                "limit": limit,
                **_counts(outcomes),
                "relative_residual": _median(o.residual for o in outcomes),
                "mse": geometric_mean(o.mse for o in outcomes),
                "steps": _median(o.steps for o in outcomes),
                "seconds": _median(o.seconds for o in outcomes),
            }
        )
    return rows


def start_rows(
    model: str,
    todo: list[Problem],
    default: dict[str, Any],
    printed: pd.DataFrame,
    starts: Iterable[dict[str, Any]] = STARTS,
) -> list[dict[str, Any]]:
    """COPA from several starts and with either pull-back, all else as in `default`.

    Parameters
    ----------
    model, todo, default
        As in `optimiser_rows`.
    printed
        The paper's MSEs, `gradleak.claims.paper.printed_runs`.
    starts
        What differs from `default`; a `hidden_spread` of NaN is one that plays no role.

    Returns
    -------
    list
        A row per setting and image: geometric mean, lowest and highest MSE over the seeds, and
        the paper's MSE of COPA, empty where the paper has none.
    """
    rows = []
    for entry in starts:
        changed = {key: value for key, value in entry.items() if value == value}
        attack = Copa(**{**default, **changed})
        seen = progress(todo, f"images, {model} from {attack.start}")
        outcomes = [attempt(attack, problem) for problem in seen]
        for name in dict.fromkeys(outcome.name for outcome in outcomes):
            mine = [outcome for outcome in outcomes if outcome.name == name]
            errors = [outcome.mse for outcome in mine if np.isfinite(outcome.mse)]
            rows.append(
                {
                    "model": model,
                    "name": name,
                    **entry,
                    "default": all(default.get(key) == value for key, value in entry.items()),
                    **_counts(mine),
                    "mse": geometric_mean(errors),
                    "lowest": min(errors, default=np.nan),
                    "highest": max(errors, default=np.nan),
                    "paper_mse": paper_value(printed, model, name),
                }
            )
    return rows


def paper_value(printed: pd.DataFrame, model: str, name: str) -> float:
    """Return Table 2's MSE of COPA without denoising for one model and image, NaN if not there."""
    keys = {"attack": "copa", "model": model, "name": name}
    found = printed
    for column, value in keys.items():
        found = found[found[column] == value]
    return float(found["value"].iloc[0]) if len(found) else np.nan


def paper_values(claims_path: str) -> pd.DataFrame:
    """MSEs that the paper prints, from its claims file."""
    printed = printed_runs(load(claims_path))
    return printed[printed["metric"] == "mse"]
