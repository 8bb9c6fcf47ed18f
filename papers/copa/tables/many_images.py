"""COPA's Table 2 over many images; the paper shows two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from gradleak.claims.statistics import MSE_FLOOR, prediction_interval
from gradleak.runtime.tidy import TABLES as TABLE_COLUMNS
from gradleak.runtime.tidy import Row, cell, frame, read_all
from papers.copa.tables.network_index import LEVEL


def _geometric(values: np.ndarray) -> float:
    return float(10.0 ** np.mean(np.log10(np.maximum(values, MSE_FLOOR))))


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values))


# By our metric: the score's metric, the mean, whether the interval is on log10, and a note.
METRICS: dict[str, tuple[str, Callable[[np.ndarray], float], bool, str]] = {
    "mse": ("mse", _geometric, True, "geometric mean"),
    "mse_mean": ("mse", _mean, True, "arithmetic mean; the interval is on log10"),
    "psnr": ("psnr", _mean, False, "mean"),
    "psnr_255": ("psnr_255", _mean, False, "mean; the paper's convention"),
    "ssim": ("ssim", _mean, False, "mean"),
}


def table(
    scores: pd.DataFrame,
    rows: Mapping[str, str],
    columns: Mapping[str, str],
    images: str,
    scale: str,
) -> pd.DataFrame:
    """Tidy table: a row for each model, attack and metric over all images and seeds.

    Parameters
    ----------
    scores
        As written by ``gradleak.scoring.scores``.
    rows, columns
        Labels of models and attacks, in the table's order.
    images, scale
        Values of these columns.

    Returns
    -------
    pandas.DataFrame
        ``ours`` is the mean named in ``note``; ``low`` and ``high`` the 95 % prediction interval of
        a single run; ``n`` the runs and ``n_ok`` the successful ones. There is no mean if a run
        failed, since the others would be a biased selection.
    """
    values = pd.to_numeric(scores["value"], errors="coerce")
    scores = scores.assign(value=values.where(scores["status"] == "ok"))
    return frame(_cells(scores, rows, columns), TABLE_COLUMNS, images, scale)


def _cells(
    scores: pd.DataFrame, rows: Mapping[str, str], columns: Mapping[str, str]
) -> Iterator[Row]:
    for (model, row), (attack, column) in product(rows.items(), columns.items()):
        own = scores[(scores["model"] == model) & (scores["attack"] == attack)]
        head = {"row": f"{row}, {own['index'].nunique()} images", "column": column}
        for name, (metric, mean, log, words) in METRICS.items():
            tried = own.loc[own["metric"] == metric, "value"]
            good = tried.dropna().to_numpy()
            counts, note = (len(tried), len(good)), f"not in the paper; {words}"
            if counts[0] > counts[1]:
                failed = counts[0] - counts[1]
                note += f"; {failed} of {counts[0]} runs failed, so there is none"
            if not len(good) or counts[0] > counts[1]:
                yield cell(head, name, np.nan, note, counts=counts)
                continue
            interval = prediction_interval(good, log, LEVEL)
            yield cell(head, name, mean(good), note, interval, counts)


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Make the table from files: ``scores``; ``rows`` and ``columns`` of `words` as in `table`."""
    scores = read_all(files["scores"])
    return table(scores, words["rows"], words["columns"], **case)
