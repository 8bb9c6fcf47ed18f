"""Columns that Soteria prunes from gradients: those that carry images, and empty ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from gradleak.client import gradient_files

COLUMNS = ["result", "model", "batch", "features", "empty", "pruned", "pruned_share"]


def table(cases: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return one row for each experiment, network and batch.

    Parameters
    ----------
    cases
        For each: ``result`` (an experiment), gradient files ``before`` and ``after`` Soteria, of
        which the first seed is used.

    Returns
    -------
    pandas.DataFrame
        Columns of the first fully connected layer's gradient: `features` in total, `empty` ones
        that are 0 without any defence, and `pruned` ones that Soteria additionally set to 0;
        `pruned_share` of the columns that were not empty.
    """
    rows = []
    for case in cases:
        before, after = (gradient_files.read(case[key])[0] for key in ("before", "after"))
        for key in before:
            model, parameter = key.rsplit("/", 1)
            if parameter != "fc1.weight":
                continue
            pairs = zip(before[key][0], after[key][0], strict=True)
            for batch, (plain, defended) in enumerate(pairs):
                shown, left = plain.any(axis=0), defended.any(axis=0)
                pruned, there = int((shown & ~left).sum()), int(shown.sum())
                counts = len(shown), len(shown) - there, pruned, pruned / max(1, there)
                rows.append((case["result"], model, batch, *counts))
    return pd.DataFrame(rows, columns=COLUMNS)


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Make the table from files: gradients ``before`` and ``after``, for ``results`` of `words`."""
    each = zip(words["results"], files["before"], files["after"], strict=True)
    return table([{"result": name, "before": one, "after": other} for name, one, other in each])
