"""Scores: the only step that sees originals."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradleak import columns
from gradleak.attacks import run
from gradleak.metrics.image import METRICS
from gradleak.models.files import ModelFile
from gradleak.models.passes import fc_input
from gradleak.targets import TargetSet

COLUMNS = [*columns.SCORES, "name", "precision"]


def score(
    path: str, targets: TargetSet, models: ModelFile, case: dict[str, Any]
) -> list[dict[str, Any]]:
    """One tidy row per image and metric.

    Parameters
    ----------
    path
        Reconstruction file.
    targets
        Originals.
    models
        Networks, for the true input of their fully connected layers.
    case
        Values of the columns that are the same in all rows: paper, result, attack, defence,
        images, targets, precision.

    Returns
    -------
    list of dict
        Records with the keys `COLUMNS`. Runs that failed keep their rows, with an empty value.
        SSIM is taken in [0, 1], the reconstruction clipped to it; the others are not clipped.
        ``fc_error`` (relative error of the fully connected layer's input, COPA Lemma A.1) and
        ``label_correct`` (0 or 1) follow where the attack found an input or a label.
    """
    images, records = run.read(path)
    chains = {chain.name: chain for chain in models.chains}
    classes = targets.source["classes"].split(", ")
    rows = []
    for record in records:
        batch, seed, model = record["batch"], record["seed"], record["model"]
        values = dict.fromkeys(METRICS, np.nan)
        if record["status"] == "ok":
            values = _image_metrics(targets, batch, images[f"{model}/image"][seed, batch])
            if "label" in record:
                values["label_correct"] = float(record["label"] == targets.labels[batch, 0])
            if f"{model}/fc_input" in images:
                found = images[f"{model}/fc_input"][seed, batch]
                true = fc_input(
                    chains[model], models.of(chains[model], seed), targets.inputs(batch)[0]
                )
                values["fc_error"] = float(np.linalg.norm(found - true) / np.linalg.norm(true))
        for metric, value in values.items():
            rows.append(
                {
                    **case,
                    "model": model,
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
    return rows


def _image_metrics(targets: TargetSet, batch: int, found: np.ndarray) -> dict[str, float]:
    original = targets.inputs(batch)[0]
    pair = (original - targets.offset, np.clip(found - targets.offset, 0.0, 1.0))
    return {
        name: metric(*pair) if name == "ssim" else metric(original, found)
        for name, metric in METRICS.items()
    }
