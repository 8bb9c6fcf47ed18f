"""Tests of the gradients of single images of a client's batch, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from gradleak.client.capture import mean_loss
from gradleak.library.network import OwnNetwork, as_tensor
from gradleak.reading.gradients import gradient, passing

LEAST = 4  # images
ONE = 0.99  # share of a row's square gradients that one image has to have to be alone
NONE = 1e-2  # a gradient vanishes below this share of the largest
UNFITTED = float(np.log(2.0))  # loss of an image whose class has a probability of 1/2
VANISHING = 0.5  # share of unfitted images without a gradient
MODE = "evaluation"


def statistics(
    network: OwnNetwork, images: np.ndarray, labels: np.ndarray
) -> dict[str, dict[str, float]]:
    """Statistics of each layer, those of `gradleak.inspect`.

    Parameters
    ----------
    network
        The client's; its loss is that of the gradients.
    images, labels
        (K, C, H, W) and (K,).
    """
    found = (
        gradient(network.module, images[k : k + 1], labels[k : k + 1], network.loss, MODE)
        for k in range(len(images))
    )
    return of_squares(square_rows(found), _losses(network, images, labels) > UNFITTED)


def square_rows(gradients: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Square norms (K, rows) of the rows of K gradients, by layer."""
    out: dict[str, list[np.ndarray]] = {}
    for one in gradients:
        for name, value in one.items():
            if value.ndim > 1 and name.endswith("weight"):
                flat = value.reshape(len(value), -1)
                rows = np.einsum("mn,mn->m", flat, flat, dtype=np.float64)
                out.setdefault(name.removesuffix(".weight"), []).append(rows)
    return {name: np.stack(rows) for name, rows in out.items()}


def of_squares(
    squares: Mapping[str, np.ndarray], unfitted: np.ndarray
) -> dict[str, dict[str, float]]:
    """As `statistics`; `unfitted` (K,) marks the images of a high loss."""
    return {name: _of_layer(values, unfitted) for name, values in squares.items()}


def _losses(network: OwnNetwork, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Loss of each image, for cross-entropy; elsewhere no loss says what is fitted."""
    if network.loss != "cross_entropy":
        return np.full(len(images), np.nan)
    module, truth = network.module, torch.from_numpy(labels)
    with passing(module, MODE), torch.no_grad():
        output = module(as_tensor(images, module)).cpu()
    each = [mean_loss(network.loss, output[k : k + 1], truth[k : k + 1]) for k in range(len(truth))]
    return torch.stack(each).double().numpy()


def _of_layer(squares: np.ndarray, unfitted: np.ndarray) -> dict[str, float]:
    """Statistics of square gradients (images, rows)."""
    norms = np.sqrt(squares.sum(axis=1))
    most, total = norms.max(), norms.sum()
    sums = squares.sum(axis=0)
    learn = sums > 0
    alone = squares.max(axis=0)[learn] > ONE * sums[learn]
    some = norms[unfitted]
    return {
        "dsnr": float(most / (total - most)) if total > most else np.inf if most else np.nan,
        "alone": float(alone.mean()) if learn.any() else np.nan,
        "silent": 1.0 - float(learn.mean()),
        "vanishing": float(np.mean(some <= NONE * some.max())) if len(some) >= LEAST else np.nan,
    }


def reasons(found: Mapping[str, float]) -> Iterator[str]:
    """Signs of an attacker in the statistics of a batch, a sentence each."""
    if found and found["vanishing"] > VANISHING:
        yield (
            f"{found['vanishing']:.0%} of the images with a high loss have hardly a gradient, "
            "others have"
        )
