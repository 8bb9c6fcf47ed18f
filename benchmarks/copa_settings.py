"""COPA's optimisers, initializations and pull-backs, compared on the same gradients."""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from gradleak.attacks.base import AttackerView
from gradleak.attacks.closed_form.copa import Copa
from gradleak.attacks.runner import run_seed
from gradleak.claims import load
from gradleak.claims.evaluate import printed_runs
from gradleak.data.targets import TargetSet
from gradleak.errors import NumericsError
from gradleak.runtime.progress import progress
from gradleak.scoring.metrics.image import mse

Settings = dict[str, Any]
# Limits that let each converge if it can. Adam never does: it gets the 8,000 steps of the
# authors' later work; a step of Levenberg-Marquardt takes up to 150 products with U and U^T.
LIMITS = {"lbfgs": 500, "levenberg_marquardt": 100, "adam": 8000}
OPTIMISERS = [{"optimiser": name, "iterations": limit} for name, limit in LIMITS.items()]
# A `hidden_spread` of NaN marks an unused one.
STARTS = [
    {"start": start, "hidden_spread": spread, "pull_back": pull_back}
    for start, spread, pull_back in (
        *(("random", spread, "appendix_b") for spread in (0.05, 0.2, 0.5)),
        ("rgap", np.nan, "appendix_b"),
        ("random", 0.05, "algorithm_1"),
        ("rgap", np.nan, "algorithm_1"),
    )
]


def attempts(
    todo: Collection[tuple[AttackerView, int, int]],
    originals: TargetSet,
    default: Settings,
    changes: Sequence[Settings],
) -> pd.DataFrame:
    """Run COPA with each of `changes` on each gradient of one image: a row for each.

    `todo` has view, seed and batch of each gradient, as `gradleak.attacks.runner.Views`, `default`
    the settings of `Copa`. `residual`, `mse` and `steps` are NaN if a run failed: the largest
    ||U a(Y) − V|| / ||V|| of the layers behind another convolution (eq. 5 or 7, its penalty
    included), 0 for a network with one convolution, and the sum of their iterations.
    """
    rows = []
    for number, change in enumerate(changes):
        attack = Copa(**default | {key: value for key, value in change.items() if value == value})
        for view, seed, batch in progress(todo, f"images, {' '.join(map(str, change.values()))}"):
            row = {"change": number, **change, "name": originals.names[batch]}
            row |= dict.fromkeys(("residual", "mse", "steps"), np.nan)
            found, begin = None, time.perf_counter()
            with suppress(NumericsError):
                found = attack.run(view, run_seed(seed, batch))
            row["seconds"] = time.perf_counter() - begin
            if found is not None:
                hidden = [facts for facts in found.layers if facts.equation in ("5", "7")]
                row["residual"] = max((facts.residual for facts in hidden), default=0.0)
                row["mse"] = mse(originals.inputs(batch)[0], found.image)
                row["steps"] = float(sum(facts.iterations for facts in hidden))
            rows.append(row)
    return pd.DataFrame(rows).replace([np.inf, -np.inf], np.nan)


def geometric_mean(values: pd.Series) -> float:
    """exp(mean(log(values))), ignoring missing values; NaN if there are no others."""
    return float(np.exp(np.log(values.clip(lower=np.finfo(float).tiny)).mean()))


def _missing(values: pd.Series) -> int:
    return int(values.isna().sum())


def optimisers(model: str, default: Settings, found: pd.DataFrame) -> pd.DataFrame:
    """Row for each optimiser from `attempts`, with the columns of docs/speed.md."""
    rows = found.groupby("change").agg(
        optimiser=("optimiser", "first"),
        default=("optimiser", "first"),
        limit=("iterations", "first"),
        runs=("name", "size"),
        failed=("mse", _missing),
        relative_residual=("residual", "median"),
        mse=("mse", geometric_mean),
        steps=("steps", "median"),
        seconds=("seconds", "median"),
    )
    rows.insert(0, "model", model)
    return rows.assign(default=rows["optimiser"] == default["optimiser"])


def starts(
    model: str, default: Settings, found: pd.DataFrame, printed: Mapping[Any, float]
) -> pd.DataFrame:
    """Row for each initialization and image from `attempts`; `printed` is from `paper_values`."""
    keys, groups = list(STARTS[0]), found.groupby(["change", "name"], sort=False)
    rows = groups[keys].first()
    rows["default"] = (rows == [default[key] for key in keys]).all(axis=1)
    spread: dict[str, Any] = {"runs": "size", "failed": _missing, "mse": geometric_mean}
    rows = rows.join(groups["mse"].agg(**spread, lowest="min", highest="max")).reset_index("name")
    rows.insert(0, "model", model)
    return rows.assign(paper_mse=[printed.get((model, name), np.nan) for name in rows["name"]])


def paper_values(claims_path: str) -> dict[Any, float]:
    """Table 2's MSEs of COPA without denoising by model and image, from the paper's claims."""
    printed = printed_runs(load(claims_path))
    rows = printed[(printed["attack"] == "copa") & (printed["metric"] == "mse")]
    return rows.set_index(["model", "name"])["value"].to_dict()
