"""What a speed measurement works on: one network, its weights, one image and its gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradleak.artifacts import read_tensors, write_tensors
from gradleak.attacks.base import AttackerView
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile
from gradleak.models.passes import margin_label
from gradleak.targets import TargetSet


@dataclass(frozen=True)
class Case:
    """Inputs of one measurement, read afresh for every repeat so that nothing is cached.

    Attributes
    ----------
    chain, weights
        The network.
    gradients
        dJ/d(parameter) in float64.
    deltas
        dJ/dZ (O, Ph, Pw) of every convolution, for the ranks.
    image
        The original (C, H, W), for the error only.
    low
        Lower end of the network's input, which spans 1.
    loss
        One of `gradleak.losses.LOSSES`.
    label
        Label if the attacker knows it, else None.
    """

    chain: Chain
    weights: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    deltas: dict[str, np.ndarray]
    image: np.ndarray
    low: float
    loss: str = "cross_entropy"
    label: int | None = None

    @property
    def view(self) -> AttackerView:
        """What an attacker sees of it."""
        labels = None if self.label is None else (self.label,)
        high = self.low + 1.0
        return AttackerView(
            self.chain, self.weights, self.gradients, labels, self.low, high, self.loss
        )


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
    """Write a case: the gradient is captured on the CPU."""
    import torch

    from gradleak.gradients import capture
    from gradleak.models.passes import deltas

    device = torch.device("cpu")
    gradients = capture(
        chain,
        weights,
        image[None],
        np.array([label]),
        precision=precision,
        device=device,
        loss=loss,
    )
    parts = {
        "weight": weights,
        "gradient": gradients,
        "delta": deltas(chain, weights, image, label, loss),
        "image": {"": image.astype(np.float64)},
    }
    tensors = {f"{kind}/{name}": v for kind, part in parts.items() for name, v in part.items()}
    metadata = {"chain": chain.describe(), "low": low, "loss": loss}
    write_tensors(path, tensors, {**metadata, "label": label if granted else None})


def make_dense(path: str, models: ModelFile, targets: TargetSet) -> None:
    """Write the case of a model's first draw and the first image, gradients in float64."""
    chain = models.chains[0]
    label = int(targets.labels[0, 0])
    make(path, chain, models.of(chain, 0), targets.inputs(0)[0], label, targets.offset)


def make_single(path: str, models: ModelFile, targets: TargetSet) -> None:
    """Write the same case with float32 gradients of the logistic loss, y against the output."""
    chain = models.chains[0]
    weights, image = models.of(chain, 0), targets.inputs(0)[0]
    label = margin_label(chain, weights, image, "opposite")
    options = {"precision": "float32", "loss": "logistic"}
    make(path, chain, weights, image, label, targets.offset, granted=True, **options)


def read(path: str) -> Case:
    """Read a case."""
    tensors, metadata = read_tensors(path)

    def part(kind: str) -> dict[str, np.ndarray]:
        return {k.partition("/")[2]: v for k, v in tensors.items() if k.startswith(f"{kind}/")}

    return Case(
        Chain.from_description(metadata["chain"]),
        part("weight"),
        part("gradient"),
        part("delta"),
        tensors["image/"],
        metadata["low"],
        metadata["loss"],
        metadata["label"],
    )
