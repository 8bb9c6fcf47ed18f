"""Rows of tidy tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

Row = dict[str, Any]
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
    found = (
        pd.DataFrame(list(rows)).assign(images=images, scale=scale).reindex(columns=list(columns))
    )
    return found.astype({"n": "Int64", "n_ok": "Int64"})


def finite(value: float) -> float:
    """Replace an infinite number by NaN."""
    return float(value) if np.isfinite(value) else np.nan
