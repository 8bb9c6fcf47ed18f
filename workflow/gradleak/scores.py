"""Scores: the only step that sees originals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gradleak.attacks import run
from gradleak.metrics.image import METRICS
from gradleak.targets import TargetSet

COLUMNS = (
    "paper result attack model defence images targets seed batch index label metric value status "
    "reason name precision"
).split()


def score(path: str, targets: TargetSet, case: dict[str, Any]) -> pd.DataFrame:
    """One tidy row per image and metric.

    Parameters
    ----------
    path
        Reconstruction file.
    targets
        Originals.
    case
        Values of the columns that are the same in all rows: paper, result, attack, defence,
        images, targets, precision.

    Returns
    -------
    pandas.DataFrame
        Columns `COLUMNS`. Runs that failed keep their rows, with an empty value. SSIM is taken
        in the range [0, 1], the reconstruction clipped to it; the other metrics are not clipped.
    """
    images, records = run.read(path)
    classes = targets.source["classes"].split(", ")
    rows = []
    for record in records:
        batch, seed = record["batch"], record["seed"]
        found = images[f"{record['model']}/image"][seed, batch]
        for metric in METRICS:
            value = np.nan
            if record["status"] == "ok":
                value = _value(metric, targets, batch, found)
            rows.append(
                {
                    **case,
                    "model": record["model"],
                    "seed": seed,
                    "batch": batch,
                    "index": int(targets.indices[batch, 0]),
                    "label": classes[batch],
                    "metric": metric,
                    "value": value,
                    "status": record["status"],
                    "reason": record["reason"],
                    "name": targets.names[batch],
                }
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _value(metric: str, targets: TargetSet, batch: int, found: np.ndarray) -> float:
    original = targets.inputs(batch)[0]
    if metric == "ssim":
        return METRICS[metric](
            original - targets.offset, np.clip(found - targets.offset, 0.0, 1.0)
        )
    return METRICS[metric](original, found)
