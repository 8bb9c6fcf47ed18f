"""Likeness of the end of a search for a batch to the one image of R-GAP (its Figure 8)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradleak.attacks import reconstructions
from gradleak.data import targets
from gradleak.runtime.tidy import TABLES as TABLE_COLUMNS
from gradleak.runtime.tidy import Given, Row, cell, frame
from gradleak.scoring.scores import answer

Labels = Mapping[str, str]
Record = Mapping[str, Any]
# A correlation from which two images are called alike; Pearson's, so that brightness and contrast,
# which a linear combination does not keep, make no difference.
ALIKE = 0.9


def correlations(image: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Pearson's correlation of an image with each of `others` (K, ...), 0 for a constant one."""
    first = image.ravel() - image.mean()
    rest = others.reshape(len(others), -1)
    rest = rest - rest.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(rest, axis=1) * np.linalg.norm(first)
    return np.divide(rest @ first, lengths, out=np.zeros(len(rest)), where=lengths > 0)


def likeness(found: np.ndarray, one: np.ndarray, originals: np.ndarray) -> tuple[np.ndarray, ...]:
    """Correlation of each image of a search with `one`, and its largest with an original."""
    to_one = np.array([correlations(image, one[None])[0] for image in found])
    to_originals = np.array([correlations(image, originals).max() for image in found])
    return to_one, to_originals


def _stored(path: str) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    images, runs = reconstructions.read(path)
    return images, [run for run in runs if run["status"] == "ok"]


def _rows(files: Given, words: Given) -> Iterator[Row]:
    """Rows of each batch and start, and two that count them."""
    paths = {Path(path).stem: path for path in files["reconstructions"]}
    originals = targets.read(files["targets"])
    (images, closed), (others, searched) = (_stored(paths[words[k]]) for k in ("one", "many"))
    ones = {(run["model"], run["seed"], run["batch"]): run for run in closed if not run["answer"]}
    counted: list[tuple[int, bool]] = []
    for run in searched:
        place = run["model"], run["seed"], run["batch"]
        if place not in ones:
            continue
        one = answer(images, ones[place])[0]
        to_one, to_originals = likeness(answer(others, run), one, originals.inputs(run["batch"]))
        alike = (to_one >= ALIKE) & (to_one > to_originals)
        counted.append((run["batch"], bool(alike.any())))
        head = {"row": f"batch {run['batch'] + 1}, start {run['answer'] + 1}", "column": "images"}
        yield cell(head, "alike", float(alike.sum()), f"of {len(alike)} images of the search")
        yield cell(head, "to_one", float(to_one.max()), "largest correlation with the one image")
        said = "largest correlation of that image with an original"
        yield cell(head, "to_originals", float(to_originals[to_one.argmax()]), said)
    head, counts = {"row": "all batches", "column": "searches"}, (len(counted), len(counted))
    note = f"searches with an image that is nearer to the one image (at least {ALIKE:g})"
    yield cell(head, "searches", float(sum(found for _, found in counted)), note, counts=counts)


def make(files: Given, words: Given, case: Labels) -> pd.DataFrame:
    """Make the table of an experiment's batches from ``targets`` and ``reconstructions``.

    ``one`` and ``many`` of `words` are the ids of the closed form and of the search; failed
    searches are left out, and of the closed form its first answer is taken. ``alike`` counts the
    search's images whose correlation with the closed form's image is at least `ALIKE` and above
    that with every original.
    """
    return frame(_rows(files, words), TABLE_COLUMNS, **case)
