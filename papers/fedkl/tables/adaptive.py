"""Protection by a key-lock against attackers who know parts of it, or fit its effect."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from gradleak.claims.statistics import bootstrap_mean
from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import NOTHING, TABLES, Given, Row, cell, finite, frame

PLACE = ("network", "dataset", "method")
COLUMNS = [*TABLES, *PLACE, "case", "model", "attack", "result"]
RUN = ["seed", "batch", "index"]
READ = ["model", "answer", *RUN, "metric", "value", "status"]
# By metric, the worst value, assigned to failed runs.
WORST = {"mse": np.inf, "psnr": -np.inf, "ssim": -np.inf, "lpips_alex": np.inf}
ALWAYS = ("mse", "psnr", "ssim")


def runs(path: str, model: str) -> pd.DataFrame:
    """Return one row per run of an attack on `model`, with a column per metric of `WORST`.

    A failed run has NaN; LPIPS is left out if no run has it. Raises `ArtifactError` if the score
    file `path` has no rows of the network.
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
    """Median of a metric over runs, failed ones counting as the worst; may be infinite."""
    return float(values.fillna(WORST[metric]).median())


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each network, data set, attack, case and metric.

    Files ``scores`` are those of ``panels`` of `words`, which have labels ``network``, ``dataset``
    and ``method``; ``case`` (what the attacker has), ``experiment``, ``attack`` and ``model``.
    ``base`` is the reference case, without a lock; `case` has the columns ``images`` and ``scale``.

    For each of ``mse``, ``psnr``, ``ssim`` and, if computed, ``lpips_alex``: mean (with a 95 %
    bootstrap interval; none if a run failed), ``…_median`` (failed runs count as the worst; none if
    the median is one), ``…_sd``. Against the case without lock, on common runs: ``mse_ratio``, the
    ratio of medians, and ``psnr_change``, ``ssim_change``, ``lpips_alex_change``, their difference.
    ``n`` counts runs (seeds and images), ``n_ok`` successful ones.
    """
    panels, base = words["panels"], words["base"]
    found = [runs(path, p["model"]) for p, path in zip(panels, files["scores"], strict=True)]
    places = [tuple(panel[key] for key in PLACE) for panel in panels]
    cases = list(zip(panels, places, found, strict=True))
    bases = {place: one for panel, place, one in cases if panel["case"] == base}
    rows: list[Row] = []
    for panel, place, one in cases:
        head = {key: panel[key] for key in (*PLACE, "case", "model", "attack")}
        head |= {"row": f"{panel['network']}, {panel['dataset']}", "result": panel["experiment"]}
        head["column"] = f"{panel['method']}: {panel['case']}"
        rows += _own(head, one)
        if panel["case"] != base and place in bases:
            rows += _against(head, one, bases[place], base)
    return frame(rows, COLUMNS, **case)


def _own(head: Row, one: pd.DataFrame) -> Iterator[Row]:
    for metric, values in one.items():
        good = values.dropna().to_numpy()
        counts, complete = (len(values), len(good)), len(good) == len(values)
        several = len(good) > 1
        interval = bootstrap_mean(good) if complete and several else NOTHING
        mean = float(good.mean()) if complete else np.nan
        said = "mean" if complete else "mean; none, since runs failed"
        yield cell(head, str(metric), mean, said, interval, counts)
        said = "median, a failed run counting as the worst"
        yield cell(
            head, f"{metric}_median", finite(median(values, str(metric))), said, counts=counts
        )
        spread = float(good.std(ddof=1)) if several else np.nan
        said = "standard deviation over runs that did not fail"
        yield cell(head, f"{metric}_sd", spread, said, counts=counts)


def _against(head: Row, one: pd.DataFrame, other: pd.DataFrame, base: str) -> Iterator[Row]:
    """Yield medians compared with those of the same runs in the case `base`."""
    shared = one.index.intersection(other.index)
    for metric in (name for name in WORST if name in one and name in other):
        pair = [each[metric].reindex(shared) for each in (one, other)]
        own, theirs = (finite(median(values, metric)) for values in pair)
        name, value, what = f"{metric}_change", own - theirs, "median less that"
        if metric == "mse":
            name, value, what = "mse_ratio", own / theirs, "median over that"
        counts = len(shared), int((pair[0].notna() & pair[1].notna()).sum())
        yield cell(head, name, value, f"{what} of '{base}' on the same runs", counts=counts)
