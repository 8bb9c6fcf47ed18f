"""Tests of what keeps the second-order attack from recovering batches: start, labels or minima.

An attack never sees the images. This table does: it lets the search begin beside them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.optimization.gauss_newton import GaussNewton
from gradleak.attacks.runner import Views, run_seed
from gradleak.data import targets
from gradleak.runtime.tidy import TABLES as TABLE_COLUMNS
from gradleak.runtime.tidy import Given, Row, cell, frame
from gradleak.scoring.metrics.image import assignment, mse

COLUMNS = [*TABLE_COLUMNS, "size"]
# Standard deviations of the noise on the images that a search begins with, in an input of [0, 1].
NOISE = (0.1, 0.3)
# Times that a search is begun again where the last one ended.
AGAIN = 4


def starts(images: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Starts (1, K, C, H, W) beside the images (K, C, H, W), by description."""
    for number, noise in enumerate(NOISE):
        drawn = np.random.default_rng((seed, number)).standard_normal(images.shape)
        yield f"images with noise {noise:g}", (images + noise * drawn)[None]
    drawn = np.random.default_rng((seed, 0)).standard_normal(images.shape)
    yield "images with noise 0.1, in another order", np.roll(images + NOISE[0] * drawn, 1, 0)[None]
    yield "uniform noise", np.random.default_rng((seed, 9)).uniform(0, 1, (1, *images.shape))


def searches(
    view: AttackerView, images: np.ndarray, steps: int, seed: int
) -> Iterator[tuple[str, Reconstruction]]:
    """Reconstructions from each start, and from the first start with the search begun again."""
    attack = GaussNewton(iterations=steps, failure_loss=1e9, failure_range=1e9)
    first = None
    for words, begin in starts(images, seed):
        found = _searched(attack, replace(view, starts=begin), seed)
        first = first or found
        yield words, found
    assert first is not None
    for _ in range(AGAIN):
        more = _searched(attack, replace(view, starts=first.images[None]), seed)
        first = replace(more, evaluations=more.evaluations + first.evaluations)
    yield f"images with noise {NOISE[0]:g}, begun again {AGAIN} times", first


def _searched(attack: GaussNewton, view: AttackerView, seed: int) -> Reconstruction:
    (found,) = attack.run_many([view], [seed])
    if not isinstance(found, Reconstruction):
        raise found
    return found


def measured(images: np.ndarray, found: Reconstruction) -> dict[str, float]:
    """Numbers of a search for images (K, C, H, W).

    ``stiffness`` is the distance of its images from the originals, ||x − x'||, over the relative
    distance of gradients that it ended at: if the gradient is linear there, the least singular
    value of its derivative, of a gradient of norm 1, is at most 1 / stiffness.
    """
    order = assignment(images, found.images)
    errors = [mse(one, other) for one, other in zip(images, found.images[order], strict=True)]
    apart = np.linalg.norm(images - found.images[order])
    return {
        "psnr": float(np.mean([-10 * np.log10(max(error, 1e-30)) for error in errors])),
        "distance": found.loss,
        "stiffness": float(apart / np.sqrt(max(found.loss, 1e-30))),
        "reordered": float((order != np.arange(len(order))).any()),
        "evaluations": float(found.evaluations),
    }


NOTES = {
    "psnr": "dB, mean over a batch, then over batches",
    "distance": "of gradients, relative and squared, where the search ended; median",
    "stiffness": "distance of images over that of gradients; median",
    "reordered": "share of batches whose images are nearest in another order",
    "evaluations": "passes and products, mean",
}


def _cells(found: pd.DataFrame) -> Iterator[Row]:
    for (size, row), group in found.groupby(["size", "start"], sort=False):
        head = {"row": row, "column": f"batches of {size}", "size": size}
        for metric, note in NOTES.items():
            median = metric in ("distance", "stiffness")
            value = float(group[metric].median() if median else group[metric].mean())
            yield cell(head, metric, value, note, counts=(len(group), len(group)))


def make(files: Given, words: Given, case: Mapping[str, str]) -> pd.DataFrame:
    """Make the table from ``targets``, ``models`` and ``gradients``, one file each an experiment.

    ``steps`` of `words` are those of one search, ``batches`` the most batches of each size.
    """
    rows = []
    for path, model, gradient in zip(
        files["targets"], files["models"], files["gradients"], strict=True
    ):
        originals = targets.read(path)
        for view, seed, batch in Views(model, gradient, 1, int(words["batches"])):
            images = originals.inputs(batch)
            for start, found in searches(view, images, int(words["steps"]), run_seed(seed, batch)):
                numbers = measured(images, found)
                rows.append({"size": view.batch, "batch": batch, "start": start, **numbers})
    return frame(_cells(pd.DataFrame(rows)), COLUMNS, **case)
