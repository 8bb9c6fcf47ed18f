"""Means of recorded scores: ``means.csv`` of a part of a record."""

import numpy as np
import pandas as pd

from gradleak.claims.evidence import Evidence
from gradleak.claims.metrics import worst
from gradleak.claims.outcome import NotJudged

FILE = "means.csv"
KEYS = ["result", "model", "defence", "attack", "metric"]
COLUMNS = [*KEYS, "n", "n_ok", "mean", "sd", "median"]


def means(evidence: Evidence, images: str) -> pd.DataFrame:
    """A row for each network, defence, attack and metric of an attack's own choices.

    ``n`` counts runs (seeds, batches, images), ``n_ok`` those that did not fail. ``mean`` and
    ``sd``, the standard deviation, are in the metric's unit, and empty if a run failed; in the
    ``median`` it counts as the worst. Metrics that were not available are left out.
    """
    here = evidence.on(images)
    if here.scores.empty:
        return pd.DataFrame(columns=COLUMNS)
    there = here.scores[(here.scores["images"] == images) & (here.scores["answer"] == "0")]
    there = there[there["status"].isin(("ok", "missed"))]
    rows = []
    for values in there[KEYS].drop_duplicates().itertuples(index=False):
        *where, metric = (str(value) for value in values)
        try:
            runs = here.runs(dict(zip(KEYS, where, strict=False)), metric)
        except NotJudged:
            continue
        numbers, n_ok = runs["value"], int(runs["ok"].sum())
        whole = numbers if n_ok == len(runs) else numbers.iloc[:0]
        median = float(numbers.fillna(worst(metric)).median())
        told = [whole.mean(), whole.std(), median if np.isfinite(median) else np.nan]
        rows.append([*values, len(runs), n_ok, *told])
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(KEYS, ignore_index=True)
