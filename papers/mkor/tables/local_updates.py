"""MKOR from what a client returns after several local updates (section 4)."""

import numpy as np
import pandas as pd

from gradleak.data.targets import TargetSet
from gradleak.data.targets import read as read_targets
from gradleak.models.files import read
from gradleak.runtime.tidy import Given
from papers.mkor.batches import METRICS, Arrays, Sent, Setting, Share, means, standard_error

COLUMNS = ["model", "rate", "updates", "metric", "value", "change", "error", "batches"]


def updated(setting: Setting, targets: TargetSet, rate: float, updates: int) -> Share:
    """Return how a client shares its update after `updates` steps of SGD on its whole batch.

    The server knows `rate` and `updates`, and takes (W₀ − W) / (rate · updates) for a gradient: it
    is the mean of the gradients of all steps.
    """

    def share(sent: Sent, batch: int) -> Arrays:
        images, labels = targets.inputs(batch), targets.labels[batch]
        weights: Arrays = sent.weights
        total: dict[str, np.ndarray] = {}
        for _ in range(updates):
            step = setting.gradient(sent._replace(weights=weights), images, labels)
            total = {name: value + total.get(name, 0) for name, value in step.items()}
            weights = {n: (v - rate * step[n]).astype(v.dtype) for n, v in weights.items()}
        return {name: value / updates for name, value in total.items()}

    return share


def _of_batches(
    setting: Setting, sent: Sent, targets: TargetSet, rate: float, updates: int
) -> pd.DataFrame:
    return pd.DataFrame(means(setting, sent, targets, updated(setting, targets, rate, updates)))


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each network, ``rates`` and ``updates`` of `words`, and metric.

    `value` is the mean over images of all batches; `change` that of the batches' means less those
    of a single update, with its standard `error` over batches.
    """
    targets, setting, rows = read_targets(files["targets"]), Setting.of(words["setting"]), []
    models = read(files["models"][0])
    for chain in (chain for chain in models.chains if chain.name in words["models"]):
        sent = setting.send(chain, models.of(chain, 0))
        single = _of_batches(setting, sent, targets, 1.0, 1)  # the same at every rate
        for rate in words["rates"]:
            for updates in words["updates"]:
                found = single
                if updates > 1:
                    found = _of_batches(setting, sent, targets, rate, updates)
                for metric in METRICS:
                    gaps = (found[metric] - single[metric]).to_numpy()
                    numbers = float(found[metric].mean()), float(np.mean(gaps))
                    same = chain.name, rate, updates, metric
                    rows.append((*same, *numbers, standard_error(gaps), len(gaps)))
    return pd.DataFrame(rows, columns=COLUMNS)
