"""A client's update: weights before and after its local training, buffers, and how it trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gradleak.client.local_training import Recipe
from gradleak.errors import ConfigError, NotApplicable, NumericsError

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Update:
    """Weights before and after a client's local training, as a server of FedAvg knows them.

    A gradient is the special case of one step of plain SGD.
    """

    before: Tensors = field(repr=False)  # parameters that the server sent, by name
    after: Tensors = field(repr=False)  # parameters that came back
    recipe: Recipe
    count: int  # images of the client
    buffers_before: Tensors = field(repr=False, default_factory=dict)  # running statistics
    buffers_after: Tensors = field(repr=False, default_factory=dict)  # empty: withheld

    def __post_init__(self) -> None:
        if (names := set(self.before)) != set(self.after):
            other = sorted(names ^ set(self.after))[0]
            raise ConfigError(
                f"update: {other} is in only one of before and after; give the same parameters."
            )
        for name, value in self.before.items():
            if value.shape != self.after[name].shape:
                raise ConfigError(
                    f"update: {name} has the shape {tuple(value.shape)} before and "
                    f"{tuple(self.after[name].shape)} after; give weights of one network."
                )
        if self.count < 1:
            raise ConfigError(
                f"update: count is {self.count}; give the number of images, 1 or more."
            )

    @property
    def change(self) -> dict[str, np.ndarray]:
        """Weights before minus weights after, by parameter."""
        pairs = ((n, v.detach(), self.after[n].detach()) for n, v in self.before.items())
        found = {name: (before - after).cpu().numpy() for name, before, after in pairs}
        if not any(np.any(value) for value in found.values()):
            raise NumericsError(
                "update: weights before and after are equal, so nothing can be reconstructed; "
                "check that the client trained and that both are not one object."
            )
        return found

    @property
    def steps(self) -> int:
        """Number of local steps."""
        return len(self.recipe.batches(self.count))

    def mean_gradient(self) -> dict[str, np.ndarray]:
        """First-order approximation: (before − after) / (rate · Σ_t c_t), exact for one step.

        With SGD it is the weighted mean of the steps' gradients. Raises `NotApplicable` for Adam,
        whose steps have a gradient's signs but not its sizes.
        """
        if self.recipe.optimiser != "sgd":
            raise NotApplicable(
                f"{self.recipe.optimiser} divides each gradient by its own size, so its update is "
                "none; use a search, which simulates the client: attack='inverting_gradients'."
            )
        scale = 1.0 / (self.recipe.rate * self.recipe.weight(self.count))
        return {name: scale * value for name, value in self.change.items()}


def split(state: Mapping[str, Any], names: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a state dict into parameters, by `names`, and buffers."""
    return {n: state[n] for n in names}, {n: v for n, v in state.items() if n not in names}
