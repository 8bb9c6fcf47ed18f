"""What a speed measurement works on: one network, its weights, one image and its gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradleak.artifacts import read_tensors, write_tensors
from gradleak.attacks.base import AttackerView
from gradleak.models.chain import Chain


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
    """

    chain: Chain
    weights: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    deltas: dict[str, np.ndarray]
    image: np.ndarray
    low: float

    @property
    def view(self) -> AttackerView:
        """What an attacker sees of it; the label is not granted."""
        high = self.low + 1.0
        return AttackerView(self.chain, self.weights, self.gradients, None, self.low, high)


def make(
    path: str,
    chain: Chain,
    weights: dict[str, np.ndarray],
    image: np.ndarray,
    label: int,
    low: float,
) -> None:
    """Write a case: the gradient is captured in float64 on the CPU."""
    import torch

    from gradleak.gradients import capture
    from gradleak.models.passes import deltas

    device = torch.device("cpu")
    gradients = capture(chain, weights, image, label, precision="float64", device=device)
    parts = {
        "weight": weights,
        "gradient": gradients,
        "delta": deltas(chain, weights, image, label),
        "image": {"": image.astype(np.float64)},
    }
    tensors = {f"{kind}/{name}": v for kind, part in parts.items() for name, v in part.items()}
    write_tensors(path, tensors, {"chain": chain.describe(), "low": low})


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
    )
