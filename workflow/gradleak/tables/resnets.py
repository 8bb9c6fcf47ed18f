"""R-GAP Figure 4 in numbers: RA-i, accuracy and the error of reconstructions of ResNets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from gradleak.claims.statistics import bootstrap_mean, wilson, z_value
from gradleak.columns import TABLES as TABLE_COLUMNS
from gradleak.tables import network_index

LEVEL = 0.95
ARCHITECTURE, ACCURACY = "Architecture", "Trained"
# Metric of the table: that of the scores.
ERRORS = {"mse": "mse", "mse_input": "mse_input", "psnr": "psnr", "ssim": "ssim"}
Row = dict[str, Any]


def table(
    scores: pd.DataFrame,
    trained: pd.DataFrame,
    rank: pd.DataFrame,
    networks: Mapping[str, str],
    columns: Mapping[str, str],
    images: str,
    scale: str,
) -> pd.DataFrame:
    """Tidy table: rows are networks, the first of which is the one without a cut skip.

    Parameters
    ----------
    scores, trained, rank
        As ``gradleak.scores``, ``gradleak.training`` and ``gradleak.rank_table`` write them.
    networks
        What to call each model, in the table's order.
    columns
        What to call each experiment: how its networks got their weights, and how norms ran.
    images, scale
        For the columns of these names.

    Returns
    -------
    pandas.DataFrame
        In the column ``Architecture``: ``ra`` and ``ra_alone``, the largest RA-i of a layer with
        and without virtual constraints from before its block. In ``Trained``: ``accuracy`` on
        images that neither trained the network nor chose its epoch, mean over seeds, and
        ``accuracy_change`` against the first network; intervals are binomial (Wilson; of a
        difference, of independent shares). For each experiment: the mean of ``mse`` (in [0, 1]),
        ``mse_input`` (of the network's inputs), ``psnr`` and ``ssim`` over images, with 95 %
        intervals (bootstrap over images); ``mse_sd``, and ``mse_ratio`` and ``sd_ratio`` to the
        first network's; ``iterations`` of the attack. A failed run leaves no mean.
    """
    rows = [
        *_counts(rank, networks),
        *_accuracies(trained, networks),
        *_errors(scores, networks, columns),
    ]
    found = pd.DataFrame(rows).assign(images=images, scale=scale)
    return found.reindex(columns=[*TABLE_COLUMNS, "model"]).astype({"n": "Int64", "n_ok": "Int64"})


def _counts(rank: pd.DataFrame, networks: Mapping[str, str]) -> Iterator[Row]:
    for model, row in networks.items():
        own = rank[rank["model"] == model]
        for metric, column in (("ra", "network_ra"), ("ra_alone", "network_ra_alone")):
            yield {
                "row": row,
                "model": model,
                "column": ARCHITECTURE,
                "metric": metric,
                "ours": float(own[column].iloc[0]),
                "note": "RA-i"
                if metric == "ra"
                else "RA-i without virtual constraints from before a layer or its block",
            }


def _accuracies(trained: pd.DataFrame, networks: Mapping[str, str]) -> Iterator[Row]:
    base: tuple[float, int] | None = None
    for model, row in networks.items():
        own = trained[trained["model"] == model]
        # All seeds are tested on the same images.
        accuracy, tested = float(own["test_accuracy"].mean()), int(own["test"].iloc[0])
        base = base or (accuracy, tested)
        head = {
            "row": row,
            "model": model,
            "column": ACCURACY,
            "n": len(own),
            "n_ok": len(own),
        }
        told = f"{tested} test images, best epoch of {int(own['epochs'].iloc[0])}"
        low, high = wilson(accuracy, tested)
        yield {
            **head,
            "metric": "accuracy",
            "ours": accuracy,
            "low": low,
            "high": high,
            "note": told,
        }
        width = z_value(LEVEL) * np.sqrt(
            sum(p * (1 - p) / n for p, n in (base, (accuracy, tested)))
        )
        change = accuracy - base[0]
        yield {
            **head,
            "metric": "accuracy_change",
            "ours": change,
            "low": change - width,
            "high": change + width,
            "note": f"against the first network; {told}",
        }


def _errors(
    scores: pd.DataFrame, networks: Mapping[str, str], columns: Mapping[str, str]
) -> Iterator[Row]:
    values = pd.to_numeric(scores["value"], errors="coerce")
    scores = scores.assign(value=values.where(scores["status"] == "ok"))
    for result, column in columns.items():
        base: pd.Series | None = None
        for model, row in networks.items():
            own = scores[(scores["result"] == result) & (scores["model"] == model)]
            head = {"row": row, "model": model, "column": column}
            spent = own.loc[own["metric"] == "evaluations", "value"]
            yield {
                **head,
                "metric": "iterations",
                "ours": spent.max(),
                "note": "gradients that a search computed",
            }
            for metric, name in ERRORS.items():
                tried = own.loc[own["metric"] == name, "value"]
                if metric == "mse":
                    base = tried if base is None else base
                    yield from ({**head, **one} for one in _spreads(tried, base))
                low, high = _interval(tried)
                yield {
                    **head,
                    "metric": metric,
                    "ours": tried.mean(skipna=False),
                    "low": low,
                    "high": high,
                    "n": len(tried),
                    "n_ok": int(tried.notna().sum()),
                    "note": "mean over images",
                }


def _interval(tried: pd.Series) -> tuple[float, float]:
    if len(tried) < 2 or tried.isna().any():
        return np.nan, np.nan
    return bootstrap_mean(tried.to_numpy(), LEVEL)


def _spreads(tried: pd.Series, base: pd.Series) -> Iterator[Row]:
    """Spread of the errors, and both against another network's."""
    counted = {"n": len(tried), "n_ok": int(tried.notna().sum())}
    own, other = (
        (each.mean(skipna=False), each.std(skipna=False) if len(each) > 1 else np.nan)
        for each in (tried, base)
    )
    for metric, value, note in (
        ("mse_sd", own[1], "standard deviation over images"),
        ("mse_ratio", own[0] / other[0], "mean MSE over the first network's"),
        ("sd_ratio", own[1] / other[1], "standard deviation over the first network's"),
    ):
        yield {**counted, "metric": metric, "ours": float(value), "note": note}


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Table from files: ``scores``, ``trained`` and ``rank``; `words` as `table` takes them."""
    scores, trained, rank = (network_index.read(files[k]) for k in ("scores", "trained", "rank"))
    return table(scores, trained, rank, words["networks"], words["columns"], **case)
