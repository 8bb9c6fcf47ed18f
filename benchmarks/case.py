"""Inputs of R-GAP's measurements: one network, its weights, one image and its gradient."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gradleak.attacks.base import AttackerView
from gradleak.data.targets import TargetSet
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile, select
from gradleak.models.numpy_autodiff import deltas, margin_label
from gradleak.runtime.artifacts import read_tensors, write_tensors


@dataclass(frozen=True)
class Case:
    """Inputs of one measurement, read afresh for every repeat so that nothing is cached."""

    view: AttackerView  # attacker's view: the network, weights, gradient and granted label
    deltas: dict[str, np.ndarray]  # dJ/dZ (O, Ph, Pw) of every convolution, for the ranks
    image: np.ndarray  # the original (C, H, W), for the error only


def make(
    path: str,
    chain: Chain,
    weights: dict[str, np.ndarray],
    image: np.ndarray,
    label: int,
    low: float,
    *,
    single: bool = False,
) -> None:
    """Write a case for an image in [low, low + 1]; its gradient is captured on the CPU.

    With `single`, gradients are float32, of the logistic loss, and the label is granted.
    """
    import torch

    from gradleak.client.capture import capture

    precision, loss = ("float32", "logistic") if single else ("float64", "cross_entropy")
    settings: dict[str, Any] = {"precision": precision, "device": torch.device("cpu"), "loss": loss}
    parts = {
        "weights": weights,
        "gradients": capture(chain, weights, image[None], np.array([label]), **settings),
        "deltas": deltas(chain, weights, image, label, loss),
    }
    tensors = {f"{part}/{name}": value for part in parts for name, value in parts[part].items()}
    facts = {"chain": chain.describe(), "low": low, "loss": loss}
    facts["labels"] = [label] if single else None
    write_tensors(path, {**tensors, "image": image.astype(np.float64)}, facts)


def make_first(path: str, models: ModelFile, targets: TargetSet, *, single: bool = False) -> None:
    """Write the case of a model's first seed and image, with `single` of the opposite label."""
    chain, image, label = models.chains[0], targets.inputs(0)[0], int(targets.labels[0, 0])
    weights = models.of(chain, 0)
    if single:
        label = margin_label(chain, weights, image, "opposite")
    make(path, chain, weights, image, label, targets.offset, single=single)


def read(path: str) -> Case:
    """Read a case."""
    tensors, facts = read_tensors(path)
    labels, low = facts["labels"], facts["low"]
    view = AttackerView(
        Chain.from_description(facts["chain"]),
        select(tensors, "weights"),
        select(tensors, "gradients"),
        None if labels is None else tuple(labels),
        low,
        low + 1.0,
        facts["loss"],
    )
    return Case(view, select(tensors, "deltas"), tensors["image"])
