"""COPA's Table 2 over many images; the paper shows two."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from gradleak.claims.statistics import MSE_FLOOR, prediction_interval
from gradleak.runtime.tidy import TABLES as TABLE_COLUMNS
from gradleak.runtime.tidy import Given, Row, cell, frame, read_all, working
from papers.copa.tables.network_index import LEVEL

Labels = Mapping[str, str]
Mean = Callable[[np.ndarray], Any]


def _geometric(errors: np.ndarray) -> Any:
    return 10.0 ** np.log10(np.maximum(errors, MSE_FLOOR)).mean()


# By our metric: the score's metric, the mean, whether the interval is on log10, and a note.
METRICS: dict[str, tuple[str, Mean, bool, str]] = {
    "mse": ("mse", _geometric, True, "geometric mean"),
    "mse_mean": ("mse", np.mean, True, "arithmetic mean; the interval is on log10"),
    "psnr": ("psnr", np.mean, False, "mean"),
    "psnr_255": ("psnr_255", np.mean, False, "mean; the paper's convention"),
    "ssim": ("ssim", np.mean, False, "mean"),
}


def table(scores: pd.DataFrame, words: Given, **case: str) -> pd.DataFrame:
    """Tidy table: a row for each model, attack and metric over all images and seeds.

    ``rows`` and ``columns`` of `words` label models and attacks. ``ours`` is the mean named in
    ``note``; ``low`` and ``high`` the 95 % prediction interval of a single run; ``n`` the runs and
    ``n_ok`` the successful ones. There is no mean if a run failed, as the others would be biased.
    """
    return frame(_cells(working(scores), words["rows"], words["columns"]), TABLE_COLUMNS, **case)


def _cells(scores: pd.DataFrame, rows: Labels, columns: Labels) -> Iterator[Row]:
    for (model, row), (attack, column) in product(rows.items(), columns.items()):
        own = scores[(scores["model"] == model) & (scores["attack"] == attack)]
        head = {"row": f"{row}, {own['index'].nunique()} images", "column": column}
        for name, (metric, mean, log, words) in METRICS.items():
            tried = own.loc[own["metric"] == metric, "value"]
            good = tried.dropna().to_numpy()
            counts, note = (len(tried), len(good)), f"not in the paper; {words}"
            if failed := len(tried) - len(good):
                note += f"; {failed} of {len(tried)} runs failed, so there is none"
            if failed or not len(good):
                yield cell(head, name, np.nan, note, counts=counts)
            else:
                interval = prediction_interval(good, log, LEVEL)
                yield cell(head, name, mean(good), note, interval, counts)


def make(files: Given, words: Given, case: Labels) -> pd.DataFrame:
    """Make the table from files: ``scores``; `words` as in `table`."""
    return table(read_all(files["scores"]), words, **case)
