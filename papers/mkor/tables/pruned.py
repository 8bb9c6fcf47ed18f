"""Columns that Soteria prunes from gradients: those that carry images, and empty ones."""

import pandas as pd

from gradleak.client import gradient_files
from gradleak.runtime.tidy import Given

COLUMNS = ["result", "model", "batch", "features", "empty", "pruned", "pruned_share"]


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each experiment in ``results`` of `words`, network and batch.

    Files ``before`` and ``after`` are the experiments' gradients without Soteria and with it, of
    which the first seed is used. Counts are of the columns of the first fully connected layer's
    gradient: `features` in total, `empty` ones that are 0 without any defence, and `pruned` ones
    that Soteria additionally set to 0; `pruned_share` is of the columns that were not empty.
    """
    rows = []
    for result, *paths in zip(words["results"], files["before"], files["after"], strict=True):
        before, after = (gradient_files.read(path)[0] for path in paths)
        for key in before:
            model, parameter = key.rsplit("/", 1)
            if parameter != "fc1.weight":
                continue
            pairs = zip(before[key][0], after[key][0], strict=True)
            for batch, (plain, defended) in enumerate(pairs):
                shown, left = plain.any(axis=0), defended.any(axis=0)
                pruned, there = int((shown & ~left).sum()), int(shown.sum())
                counts = len(shown), len(shown) - there, pruned, pruned / max(1, there)
                rows.append((result, model, batch, *counts))
    return pd.DataFrame(rows, columns=COLUMNS)
