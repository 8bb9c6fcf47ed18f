"""Inputs of R-GAP's measurements: one network, its weights, one image and its gradient."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.attacks.base import AttackerView
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile
from gradleak.models.passes import deltas, margin_label
from gradleak.targets import TargetSet


@dataclass(frozen=True)
class Case:
    """Inputs of one measurement, read afresh for every repeat so that nothing is cached."""

    view: AttackerView  # attacker's view: the network, weights, gradient and granted label
    deltas: dict[str, np.ndarray]  # dJ/dZ (O, Ph, Pw) of every convolution, for the ranks
    image: np.ndarray  # the original (C, H, W), for the error only

    @property
    def chain(self) -> Chain:
        """The network."""
        return self.view.chain


def make(
    path: str,
    chain: Chain,
    weights: dict[str, np.ndarray],
    image: np.ndarray,
    label: int,
    low: float,
    *,
    precision: str = "float64",
    loss: str = "cross_entropy",
    granted: bool = False,
) -> None:
    """Write a case for an image in [low, low + 1]; its gradient is captured on the CPU."""
    import torch

    from gradleak.gradients import capture

    settings: dict[str, Any] = {"precision": precision, "device": torch.device("cpu"), "loss": loss}
    content = {
        # Not the chain itself, which caches results.
        "chain": chain.describe(),
        "weights": weights,
        "gradients": capture(chain, weights, image[None], np.array([label]), **settings),
        "labels": (label,) if granted else None,
        "low": low,
        "loss": loss,
        "deltas": deltas(chain, weights, image, label, loss),
        "image": image.astype(np.float64),
    }
    Path(path).write_bytes(pickle.dumps(content))


def make_first(path: str, models: ModelFile, targets: TargetSet, *, single: bool = False) -> None:
    """Write the case of a model's first seed and the first image.

    With `single`, gradients are float32, of the logistic loss, y opposite to the output and
    granted.
    """
    chain, image = models.chains[0], targets.inputs(0)[0]
    weights = models.of(chain, 0)
    if single:
        label = margin_label(chain, weights, image, "opposite")
        options: dict[str, Any] = {"precision": "float32", "loss": "logistic", "granted": True}
        make(path, chain, weights, image, label, targets.offset, **options)
    else:
        make(path, chain, weights, image, int(targets.labels[0, 0]), targets.offset)


def read(path: str) -> Case:
    """Read a case."""
    content = pickle.loads(Path(path).read_bytes())
    chain, low = Chain.from_description(content["chain"]), content["low"]
    view = AttackerView(
        chain,
        content["weights"],
        content["gradients"],
        content["labels"],
        low,
        low + 1.0,
        content["loss"],
    )
    return Case(view, content["deltas"], content["image"])
