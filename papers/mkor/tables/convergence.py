"""MKOR from weights before and after training (section 7: no dependency on convergence)."""

import numpy as np
import pandas as pd

from gradleak.data.targets import read as read_targets
from gradleak.models.files import read
from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import Given
from papers.mkor.batches import METRICS, Setting, means, plain, standard_error

COLUMNS = ["model", "server", "metric", "untrained", "trained", "gap", "error", "batches"]


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each network, server and metric, and one with the accuracies.

    Files ``models`` and ``trained`` have the initial weights and those after training, whose
    accuracies are in ``summary``; ``settings`` of `words` the servers by name. `untrained` and
    `trained` are means over all images of ``targets``, `gap` is the largest absolute difference
    of a batch's mean and `error` the standard error of the mean difference over batches.
    """
    targets, rows = read_targets(files["targets"]), []
    (path,) = files["models"]
    before, after, summary = read(path), read(files["trained"]), read_csv(files["summary"])
    for chain in after.chains:
        accuracy = float(summary.loc[summary["model"] == chain.name, "test_accuracy"].iloc[0])
        rows.append((chain.name, "", "accuracy", np.nan, accuracy, np.nan, np.nan, 0))
        for name, entry in words["settings"].items():
            setting, share = Setting.of(entry), plain(Setting.of(entry), targets)
            found = [
                pd.DataFrame(means(setting, setting.send(chain, m.of(chain, 0)), targets, share))
                for m in (before, after)
            ]
            for metric in METRICS:
                first, second = (each[metric].to_numpy() for each in found)
                gaps = second - first
                both = float(first.mean()), float(second.mean())
                spread = float(np.abs(gaps).max()), standard_error(gaps)
                rows.append((chain.name, name, metric, *both, *spread, len(gaps)))
    return pd.DataFrame(rows, columns=COLUMNS)
