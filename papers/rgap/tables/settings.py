"""Inverting Gradients under several settings on one network, and how one of them was chosen."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from gradleak.claims.statistics import bootstrap_mean
from gradleak.runtime.tidy import NOTHING, Given, Row, cell, frame, read_all, working
from gradleak.runtime.tidy import TABLES as TABLE_COLUMNS

Labels = Mapping[str, Mapping[str, str]]
METRICS = ("psnr", "ssim", "mse")
LEVEL = 0.95


def table(scores: pd.DataFrame, columns: Labels, **case: str) -> pd.DataFrame:
    """Tidy table: columns are experiments, rows their attacks with settings as labels.

    Each metric is the mean over images with a 95 % bootstrap interval over these, empty if a run
    failed; ``evaluations`` are the gradients that each search computed.
    """
    return frame(_cells(working(scores), columns), [*TABLE_COLUMNS, "attack"], **case)


def _cells(scores: pd.DataFrame, columns: Labels) -> Iterator[Row]:
    own = scores[scores["answer"].astype(str) == "0"]
    for result, attacks in columns.items():
        for attack, row in attacks.items():
            runs = own[(own["result"] == result) & (own["attack"] == attack)]
            head = {"row": row, "column": result, "attack": attack}
            for metric in METRICS:
                tried = runs.loc[runs["metric"] == metric, "value"].to_numpy()
                counts = len(tried), int(np.isfinite(tried).sum())
                whole = len(tried) > 1 and counts[0] == counts[1]
                interval = bootstrap_mean(tried, LEVEL) if whole else NOTHING
                mean = float(np.mean(tried)) if len(tried) else np.nan
                yield cell(head, metric, mean, "mean over images", interval, counts)
            spent = runs.loc[runs["metric"] == "evaluations", "value"]
            yield cell(head, "evaluations", float(spent.max()), "gradients of one search")


def make(files: Given, words: Given, case: Mapping[str, str]) -> pd.DataFrame:
    """Make the table from ``scores``; ``columns`` of `words` labels attacks by experiment."""
    return table(read_all(files["scores"]), words["columns"], **case)
