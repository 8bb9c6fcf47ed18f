"""FedKL's claims and propositions in numbers: one tidy table over images and seeds."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from gradleak.data import arrays
from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError
from gradleak.runtime.tidy import TABLES, Given, Row, frame
from papers.fedkl.proofs import measures
from papers.fedkl.proofs.measures import Measures, Run
from papers.fedkl.proofs.networks import Net

IMAGES, SEEDS, SIDE = 5, 3, 8
# ResNet's stem has 16 filters with padding. Three are too few behind ReLU.
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ReLU, 16 filters", {"padding": 0}),
    ("ReLU, 16 filters, padding", {}),
    ("LeakyReLU, 16 filters, padding", {"activation": "leaky_relu"}),
    ("ReLU, 3 filters, padding", {"filters": 3}),
    ("LeakyReLU, 3 filters, padding", {"activation": "leaky_relu", "filters": 3}),
    ("ReLU, 16 filters, padding, ReLU in the lock", {"lock": "relu"}),
    ("ReLU, 16 filters, padding, Sigmoid in the lock", {"lock": "sigmoid"}),
    ("ReLU, 16 filters, padding, float32", {"precision": "float32"}),
)
USUAL: dict[str, Any] = {"activation": "relu", "filters": 16, "padding": 1}
NETS = [Net(words, **USUAL | own) for words, own in SETTINGS if "lock" not in own]
LOCKED = [Net(words, **USUAL | {"lock": "identity"} | own) for words, own in SETTINGS]
NORM, LOCK = "Claim 4", "Proposition 2"
ERROR = "relative error of what is computed from weights and the gradient alone"
NOTES = {
    "label_wrong": "1 where the least entry of the last bias's gradient is not the label's",
    "negative": "negative entries of the last bias's gradient",
    "probabilities_error": f"of the network's probabilities: {ERROR}",
    "features_error": f"of the last layer's input a': {ERROR}",
    "delta_error": f"of the gradient with respect to the layer's linear output: {ERROR}",
    "normalised_error": f"of the normalised output, eq. (26): {ERROR}",
    "input_error": f"of the input: {ERROR}",
    "input_error_scaled": "of the input after the best factor: relative error of the gradient",
    "target_error": "of the target: absolute error of what is computed from weights and gradient",
    "contrast_error": "of the input's length, from the norm's epsilon: relative error",
    "scale_error": f"of the lock's scale, without its sign: {ERROR}",
    "shift_error": f"of the lock's shift: {ERROR}",
    "free": "unknowns that gradient and weights leave free",
    "rank_one": "second singular value of the lock's gradient over the first",
    "key_error": "largest error of a value of the key, from the lock's gradient alone",
    "key_error_scaled": "the same without the bias's gradient, the largest value taken for 1",
    "lock_gradient_error": "of the lock's gradient: relative error of what key and lock give",
    "eq33_printed": "eq. (33) as printed, without sums, against autograd: relative error",
}
# In Claim 4 and Proposition 2.
NORMED = {
    "input_error": "of the input after the best factor, without padding of its difference from "
    f"each channel's mean: {ERROR}",
    "free": "unknowns that are left free beyond brightness (without padding) and contrast",
}


def table(data: Dataset, images: str, scale: str) -> pd.DataFrame:
    """Tidy table: rows are the paper's claims, columns networks, metrics the measures.

    `data` are colour images, of which the first `IMAGES` are taken, averaged to `SIDE` x `SIDE`.
    ``ours`` is the median over images and `SEEDS` seeds, ``low`` and ``high`` the extremes, ``n``
    runs of which ``n_ok`` gave a number: an input has no error if the system leaves unknowns free.
    Raises `ConfigError` if the images do not divide into `SIDE` x `SIDE` blocks or are too few.
    """
    runs = list(_runs(data))
    rows = [
        {"row": row, "column": column, "metric": metric, "note": _note(row, metric)}
        | _summary(np.array([one[metric] for one in found], dtype=float))
        for (row, column), found in _measured(runs).items()
        for metric in found[0]
    ]
    return frame(rows, TABLES, images, scale)


def _runs(data: Dataset) -> Iterator[Run]:
    count, channels, height, width = data.images.shape
    if count < IMAGES or height % SIDE or width % SIDE:
        raise ConfigError(
            f"{data.dataset} has {count} images of {height}x{width}, but the propositions need "
            f"{IMAGES} whose sides {SIDE} divides; choose another data set."
        )
    shape = (IMAGES, channels, SIDE, height // SIDE, SIDE, width // SIDE)
    blocks = data.images[:IMAGES].reshape(shape)
    small = blocks.astype(np.float64).mean(axis=(3, 5)) / 255.0
    for seed in range(SEEDS):
        for image, label in zip(small, data.labels, strict=False):
            yield Run(image, int(label), seed)


def _measured(runs: list[Run]) -> dict[tuple[str, str], list[Measures]]:
    out: dict[tuple[str, str], list[Measures]] = {}
    for run in runs:
        for column, found in measures.regressions(run).items():
            out.setdefault(("Claim 1", column), []).append(found)
    out["Claim 2", "ReLU, 32 hidden values"] = [measures.two_layers(run) for run in runs]
    double = [net for net in NETS if net.precision == "float64"]
    for row, measure, nets in (
        ("Claim 3", measures.convolution, double),
        (NORM, measures.normalised, NETS),
        (LOCK, measures.locked, LOCKED),
    ):
        out |= {(row, net.words): [measure(net, run) for run in runs] for net in nets}
    return out


def _summary(values: np.ndarray) -> Row:
    good = values[np.isfinite(values)]
    ends = (good.min(), np.median(good), good.max()) if good.size else (np.nan,) * 3
    found = (*ends, values.size, good.size)
    return dict(zip(("low", "ours", "high", "n", "n_ok"), found, strict=True))


def _note(row: str, metric: str) -> str:
    if row in (NORM, LOCK) and metric in NORMED:
        return NORMED[metric]
    number = metric.removeprefix("eq")
    return NOTES.get(metric, f"eq. ({number}), with its sums, against autograd: relative error")


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Table from files: ``dataset``, test images of the data set that `words` names."""
    return table(arrays.load(files["dataset"], words["dataset"], "test"), **case)
