"""Share of images for which H-GAP picks the better of two reconstructions, without the original."""

from collections.abc import Mapping

import pandas as pd

from gradleak.claims.statistics import wilson
from gradleak.runtime.tidy import TABLES as TABLE_COLUMNS
from gradleak.runtime.tidy import Given, cell, frame, read_all, working

Labels = Mapping[str, str]
RUN = ["model", "seed", "index"]
# Where both errors agree to this share, either choice is the better one.
SAME = 1e-6


def picked(scores: pd.DataFrame, chooser: str, candidates: list[str]) -> pd.DataFrame:
    """One row for each run in which both candidates gave an image: model, and whether ``right``."""
    own = scores[(scores["answer"].astype(str) == "0") & (scores["metric"] == "mse")]
    wide = own.pivot_table(index=RUN, columns="attack", values="value", aggfunc="first")
    wide = wide.reindex(columns=[*candidates, chooser]).dropna().reset_index()
    best = wide[candidates].min(axis=1)
    return wide[["model"]].assign(right=wide[chooser] <= best * (1 + SAME))


def make(files: Given, words: Given, case: Labels) -> pd.DataFrame:
    """Make the table from ``scores``.

    ``networks`` of `words` are labels by model, ``chooser`` and ``candidates`` ids of attacks.
    ``right`` is the share of images on which the chooser took the candidate of lower MSE, with
    Wilson's 95 % interval; the last row is over all networks. Runs in which a candidate failed are
    left out: there is nothing to choose.
    """
    scores = working(read_all(files["scores"]))
    found = picked(scores, words["chooser"], list(words["candidates"]))
    parts = {row: found[found["model"] == model] for model, row in words["networks"].items()}
    rows = []
    for row, part in {**parts, "all networks": found}.items():
        if part.empty:
            continue
        share, counts = float(part["right"].mean()), (len(part), len(part))
        note = "share of images on which the better reconstruction was chosen"
        head = {"row": row, "column": "H-GAP"}
        rows.append(cell(head, "right", share, note, wilson(share, len(part)), counts))
    return frame(rows, TABLE_COLUMNS, **case)
