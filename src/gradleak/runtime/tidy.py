"""Tidy tables: their columns, the same everywhere so that one reader serves all, and rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import read_csv

if TYPE_CHECKING:
    import pandas as pd

# Keys of a run; together with `metric` they identify one value.
RUN = [
    "paper", "result", "attack", "model", "defence", "images", "targets", "seed", "batch", "index",
]  # fmt: skip
SCORES = [*RUN, "label", "metric", "value", "status", "reason"]
TABLES = [
    "row", "column", "metric", "paper", "ours", "low", "high", "n", "n_ok", "images", "scale",
    "verdict", "note",
]  # fmt: skip

Row = dict[str, Any]
Given = Mapping[str, Any]  # files, words or case of a result
NOTHING = (np.nan, np.nan)


def cell(
    head: Row,
    metric: str,
    ours: float,
    note: str = "",
    interval: tuple[float, float] = NOTHING,
    counts: Sequence[int] = (),
) -> Row:
    """Return a row: `head` identifies the value, `counts` are of all and of successful runs."""
    low, high = interval
    row = {"metric": metric, "ours": ours, "low": low, "high": high, "note": note}
    return {**head, **row, **dict(zip(("n", "n_ok"), counts, strict=False))}


def frame(rows: Iterable[Row], columns: Sequence[str], images: str, scale: str) -> pd.DataFrame:
    """Make a table of rows, with columns for images and scale of the run."""
    import pandas as pd  # jobs that only need the columns start without it

    found = pd.DataFrame(list(rows)).assign(images=images, scale=scale)
    return found.reindex(columns=list(columns)).astype({"n": "Int64", "n_ok": "Int64"})


def working(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores with NaN for values of failed runs."""
    import pandas as pd

    values = pd.to_numeric(scores["value"], errors="coerce")
    return scores.assign(value=values.where(scores["status"] == "ok"))


def finite(value: float) -> float:
    """Replace an infinite number by NaN."""
    return float(value) if np.isfinite(value) else np.nan


def read_all(paths: Iterable[str]) -> pd.DataFrame:
    """Concatenate tables of one kind; empty text stays empty. `ArtifactError` without any file."""
    import pandas as pd

    frames = [read_csv(path, keep_default_na=False) for path in paths]
    if not frames:
        raise ArtifactError(
            "No results to tabulate; name models and attacks in the experiments of config.yaml."
        )
    return pd.concat(frames, ignore_index=True)
