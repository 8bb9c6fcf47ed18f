"""A client's update: weights before and after its local training, buffers, and how it trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import torch

from gradleak.client.local_training import Recipe
from gradleak.errors import ConfigError, NotApplicable, NumericsError

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Update:
    """Weights before and after a client's local training, as a server of FedAvg knows them.

    A gradient is the special case of one step of plain SGD. Values may be tensors or arrays.

    Attributes
    ----------
    before, after
        Parameters that the server sent, and that came back, by name.
    recipe
        How the client trained.
    count
        Number of its images.
    buffers_before, buffers_after
        Running statistics, by name; empty if they are withheld.
    candidates
        Further recipes that the client may have followed, if that is not known.
    """

    before: Tensors = field(repr=False)
    after: Tensors = field(repr=False)
    recipe: Recipe
    count: int
    buffers_before: Tensors = field(repr=False, default_factory=dict)
    buffers_after: Tensors = field(repr=False, default_factory=dict)
    candidates: tuple[Recipe, ...] = ()

    def __post_init__(self) -> None:
        for key in ("before", "after", "buffers_before", "buffers_after"):
            object.__setattr__(self, key, _tensors(key, getattr(self, key)))
        given = self.candidates
        recipes = list(given) if isinstance(given, list | tuple) else [given]
        object.__setattr__(self, "candidates", tuple(recipes))
        for key, one in [("recipe", self.recipe), *(("candidates", one) for one in recipes)]:
            if not isinstance(one, Recipe):
                raise ConfigError(f"{key}: give a gradleak.Recipe, not {one!r}.")
        if isinstance(self.count, bool) or not isinstance(self.count, Integral) or self.count < 1:
            raise ConfigError(
                f"count: give the number of the client's images, 1 or more, not {self.count!r}."
            )
        if names := set(self.before) ^ set(self.after):
            raise ConfigError(
                f"update: {sorted(names)[0]} is in only one of before and after; give the same "
                "parameters."
            )
        for name, value in self.before.items():
            if value.shape != self.after[name].shape:
                raise ConfigError(
                    f"update: {name} has the shape {tuple(value.shape)} before and "
                    f"{tuple(self.after[name].shape)} after; give weights of one network."
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
                "no gradient; use a search, which simulates it: attack='inverting_gradients'."
            )
        scale = 1.0 / (self.recipe.rate * self.recipe.weight(self.count))
        return {name: scale * value for name, value in self.change.items()}


def _tensors(key: str, values: Any) -> dict[str, torch.Tensor]:
    """Return tensors by name; `ConfigError` for anything else than tensors and arrays."""
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{key}: give tensors or arrays by name, as a state dict, not {type(values).__name__}."
        )
    found = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray | np.generic):
            value = torch.from_numpy(np.asarray(value))
        if not isinstance(value, torch.Tensor):
            raise ConfigError(
                f"{key}: {name} is not a tensor or array, but {type(value).__name__}."
            )
        found[str(name)] = value
    return found


def split(state: Mapping[str, Any], names: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a state dict into parameters, by `names`, and buffers."""
    return {n: state[n] for n in names}, {n: v for n, v in state.items() if n not in names}
