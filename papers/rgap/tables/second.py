"""Additions of the second-order attack to R-GAP and DLG, network by network."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from gradleak.claims.statistics import wilson
from gradleak.runtime.tidy import TABLES as TABLE_COLUMNS
from gradleak.runtime.tidy import Given, Row, cell, frame, read_all, working
from gradleak.scoring.metrics.image import INVISIBLE

Labels = Mapping[str, str]
COLUMNS = [*TABLE_COLUMNS, "model", "attack"]


def table(scores: pd.DataFrame, words: Given, **case: str) -> pd.DataFrame:
    """Tidy table: rows are networks, columns attacks, each by its own choice of its starts.

    ``mse`` is the median over images, where a failed run counts as infinite, so that it is empty
    if half of them failed; ``recovered`` the share of images with an MSE up to `INVISIBLE`, with
    Wilson's interval; ``evaluations`` the median of gradients that one start computed, 0 for a
    closed form; ``returned``, of the attacks ``given`` another's image, the share of images that
    they returned after one evaluation. `words` has labels of ``networks`` and ``attacks``, too.
    """
    own = scores[scores["answer"].astype(str) == "0"]
    found = _cells(working(own), words["networks"], words["attacks"], words["given"])
    return frame(found, COLUMNS, **case)


def _cells(
    scores: pd.DataFrame, networks: Labels, attacks: Labels, given: Sequence[str]
) -> Iterator[Row]:
    for (model, row), (attack, column) in product(networks.items(), attacks.items()):
        own = scores[(scores["model"] == model) & (scores["attack"] == attack)]
        errors = own.loc[own["metric"] == "mse", "value"]
        if errors.empty:
            continue
        head = {"row": row, "column": column, "model": model, "attack": attack}
        counts = len(errors), int(errors.notna().sum())
        median = float(np.median(errors.fillna(np.inf)))
        share = float((errors <= INVISIBLE).mean())
        note = f"median over images; MSE, {counts[0] - counts[1]} of {counts[0]} failed"
        yield cell(head, "mse", median if np.isfinite(median) else np.nan, note, counts=counts)
        limit = f"share of images with an MSE of at most {INVISIBLE:g}"
        yield cell(head, "recovered", share, limit, wilson(share, counts[0]), counts)
        spent = own.loc[own["metric"] == "evaluations", "value"].dropna()
        told = "gradients that the chosen start computed, median over images"
        usual = float(np.median(spent)) if len(spent) else 0.0
        yield cell(head, "evaluations", usual, told, counts=counts)
        if len(spent) and attack in given:
            once, said = float((spent == 1).mean()), "share of images returned as they were given"
            yield cell(head, "returned", once, said, wilson(once, len(spent)), counts)


def make(files: Given, words: Given, case: Labels) -> pd.DataFrame:
    """Make the table from files: ``scores``; `words` as in `table`."""
    return table(read_all(files["scores"]), words, **case)
