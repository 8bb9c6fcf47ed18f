"""How much a key-lock keeps from attackers who know this or that of it, or fit what it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gradleak.artifacts import read_csv
from gradleak.claims.statistics import bootstrap_mean
from gradleak.columns import TABLES
from gradleak.errors import ArtifactError

COLUMNS = [*TABLES, "network", "dataset", "method", "case", "model", "attack", "result"]
RUN = ["seed", "batch", "index"]
READ = ["model", "answer", *RUN, "metric", "value", "status"]
# Metric: the value that a failed run counts as, the worst.
WORST = {"mse": np.inf, "psnr": -np.inf, "ssim": -np.inf, "lpips_alex": np.inf}
ALWAYS = ("mse", "psnr", "ssim")


def runs(path: str, model: str) -> pd.DataFrame:
    """One row for each run of an attack on a network, a column for each metric of `WORST`.

    A failed run has NaN; LPIPS is left out where no run has it.

    Parameters
    ----------
    path
        Score file.
    model
        The network.

    Raises
    ------
    ArtifactError
        If the file has no rows of it.
    """
    scores = read_csv(path, READ, keep_default_na=False)
    scores = scores[(scores["model"] == model) & (scores["answer"] == 0)]
    if scores.empty:
        raise ArtifactError(
            f"{path} has no rows of {model}; delete it and ask Snakemake for it again."
        )
    value = pd.to_numeric(scores["value"], errors="coerce").where(scores["status"] == "ok")
    wide = scores.assign(value=value).pivot(index=RUN, columns="metric", values="value")
    there = [m for m in WORST if m in ALWAYS or (m in wide and wide[m].notna().any())]
    return wide.reindex(columns=there)


def median(values: pd.Series, metric: str) -> float:
    """Median of a metric over runs, a failed one counting as the worst; may be infinite."""
    return float(values.fillna(WORST[metric]).median())


def table(
    panels: Sequence[Mapping[str, Any]], scores: Sequence[str], base: str, images: str, scale: str
) -> pd.DataFrame:
    """Tidy table: a row for each network, data set, attack, case and metric.

    Parameters
    ----------
    panels
        ``network``, ``dataset`` and ``method`` in words, ``case`` (what the attacker has),
        ``experiment``, ``attack`` and ``model`` of each.
    scores
        The score file of each.
    base
        The case that the others are compared with: the one without a lock.
    images, scale
        For the columns of these names.

    Returns
    -------
    pandas.DataFrame
        For each of ``mse``, ``psnr``, ``ssim`` and, where it was computed, ``lpips_alex``: its
        mean (with a 95 % bootstrap interval; none if a run failed), ``…_median`` (a failed run
        counts as the worst; none if it is the median), ``…_sd``. Against the case without lock, on
        the runs that both have: ``mse_ratio``, the ratio of medians, and ``psnr_change``,
        ``ssim_change``, ``lpips_alex_change``, their difference. ``n`` counts runs (draws of
        weights and images), ``n_ok`` those that did not fail.
    """
    found = [runs(path, panel["model"]) for panel, path in zip(panels, scores, strict=True)]
    bases = {
        _place(panel): one
        for panel, one in zip(panels, found, strict=True)
        if panel["case"] == base
    }
    rows = []
    for panel, one in zip(panels, found, strict=True):
        cell = list(_own(one))
        if panel["case"] != base and _place(panel) in bases:
            cell += _against(one, bases[_place(panel)], base)
        rows += [{**_head(panel), **row} for row in cell]
    out = pd.DataFrame(rows).assign(images=images, scale=scale)
    return out.reindex(columns=COLUMNS).astype({"n": "Int64", "n_ok": "Int64"})


def _place(panel: Mapping[str, Any]) -> tuple[str, str, str]:
    return panel["network"], panel["dataset"], panel["method"]


def _head(panel: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that say which cell a row is of."""
    names = ("network", "dataset", "method", "case", "model", "attack")
    return {
        "row": f"{panel['network']}, {panel['dataset']}",
        "column": f"{panel['method']}: {panel['case']}",
        **{name: panel[name] for name in names},
        "result": panel["experiment"],
    }


def _own(one: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Mean, median and spread of each metric."""
    for metric in one:
        values = one[metric]
        good = values.dropna().to_numpy()
        counts = {"n": len(values), "n_ok": len(good)}
        complete = len(good) == len(values)
        interval = (np.nan, np.nan)
        if complete and len(good) > 1:
            interval = bootstrap_mean(good)
        low, high = interval
        yield {
            "metric": metric,
            "ours": float(good.mean()) if complete else np.nan,
            "low": low,
            "high": high,
            "note": "mean" if complete else "mean; none, since runs failed",
            **counts,
        }
        yield {
            "metric": f"{metric}_median",
            "ours": _finite(median(values, str(metric))),
            "note": "median, a failed run counting as the worst",
            **counts,
        }
        spread = float(good.std(ddof=1)) if len(good) > 1 else np.nan
        note = "standard deviation over runs that did not fail"
        yield {"metric": f"{metric}_sd", "ours": spread, "note": note, **counts}


def _against(one: pd.DataFrame, other: pd.DataFrame, base: str) -> Iterator[dict[str, Any]]:
    """Medians against those of the same runs in the case `base`."""
    shared = one.index.intersection(other.index)
    for metric in WORST:
        if metric not in one or metric not in other:
            continue
        pair = [each[metric].reindex(shared) for each in (one, other)]
        own, theirs = (_finite(median(values, metric)) for values in pair)
        ratio = metric == "mse"
        what = "median over that" if ratio else "median less that"
        yield {
            "metric": f"{metric}_{'ratio' if ratio else 'change'}",
            "ours": own / theirs if ratio else own - theirs,
            "n": len(shared),
            "n_ok": int((pair[0].notna() & pair[1].notna()).sum()),
            "note": f"{what} of '{base}' on the same runs",
        }


def _finite(value: float) -> float:
    return value if np.isfinite(value) else float("nan")


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Table from files: ``scores`` of the ``panels`` of `words`; ``base`` is compared with."""
    return table(words["panels"], list(files["scores"]), words["base"], **case)
