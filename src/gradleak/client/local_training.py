"""Local training of a client of FedAvg: steps of an optimiser between two messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradleak.client.capture import mean_loss
from gradleak.errors import ConfigError

Optimiser = Literal["sgd", "adam"]
# Of torch.optim.Adam.
BETAS, EPSILON = (0.9, 0.999), 1e-8
Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Recipe:
    """Local training: epochs over the client's images in batches, in their order."""

    rate: float  # learning rate
    epochs: int = 1
    batch_size: int | None = None  # images per step; None: all of them
    optimiser: Optimiser = "sgd"
    momentum: float = 0.0  # of SGD

    def __post_init__(self) -> None:
        whole = {key: getattr(self, key) for key in ("epochs", "batch_size")}
        whole = {key: value for key, value in whole.items() if value is not None}
        real = {key: getattr(self, key) for key in ("rate", "momentum")}
        for key, value in {**whole, **real}.items():
            kind, words = (Integral, "a whole number") if key in whole else (Real, "a number")
            if isinstance(value, bool) or not isinstance(value, kind):
                raise ConfigError(f"{key}: give {words}, not {value!r}.")
        rules = (
            ("rate", 0 < self.rate < inf, "a number above 0"),
            ("epochs", self.epochs >= 1, "1 or more"),
            ("batch_size", self.batch_size is None or self.batch_size >= 1, "1 or more, or None"),
            ("optimiser", self.optimiser in get_args(Optimiser), "sgd or adam"),
            ("momentum", 0.0 <= self.momentum < 1.0, "0 or more, below 1"),
        )
        for key, fits, wanted in rules:
            if not fits:
                raise ConfigError(f"{key}: give {wanted}, not {getattr(self, key)!r}.")
        if self.momentum and self.optimiser != "sgd":
            raise ConfigError(f"momentum: {self.optimiser} has its own; take it out.")

    def batches(self, count: int) -> list[slice]:
        """Images of each step, of `count`."""
        size = min(self.batch_size or count, count)
        return [slice(i, min(i + size, count)) for i in range(0, count, size)] * self.epochs

    def weight(self, count: int) -> float:
        """Return Σ_t c_t where SGD's update is −rate Σ_t c_t g_t: the number of plain steps."""
        steps = len(self.batches(count))
        return sum(sum(self.momentum**j for j in range(steps - t)) for t in range(steps))


# Called with the gradient of a step before it is taken.
Watch = Callable[[list[Tensor]], None]


def local_steps(
    module: nn.Module,
    before: Parameters,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    loss: str = "cross_entropy",
    differentiable: bool = False,
    watch: Watch | None = None,
) -> dict[str, Tensor]:
    """Return a client's parameters after its local steps.

    `module` gives the forward pass in whatever mode it is in, and its buffers are updated by it;
    its own parameters are not used. With `differentiable`, what is returned depends on `images`
    (K, C, H, W), which searches need that simulate the client (Dimitrov et al. 2022).
    """
    names = list(before)
    values = [value if differentiable else value.detach() for value in before.values()]
    state: list[Tensor] | None = None
    for number, batch in enumerate(recipe.batches(len(images)), 1):
        values = [v if v.requires_grad else v.clone().requires_grad_() for v in values]
        own = dict(zip(names, values, strict=True))
        output = functional_call(module, own, (images[batch].clone(),))
        value = mean_loss(loss, output, labels[batch])
        found = torch.autograd.grad(
            value, values, create_graph=differentiable, allow_unused=True, materialize_grads=True
        )
        steps, state = _step([*found], state, number, recipe)
        if watch is not None:
            watch([*found])
        values = [v - recipe.rate * step for v, step in zip(values, steps, strict=True)]
        if not differentiable:
            values = [v.detach() for v in values]
    return dict(zip(names, values, strict=True))


def _step(
    gradients: list[Tensor], state: list[Tensor] | None, number: int, recipe: Recipe
) -> tuple[list[Tensor], list[Tensor] | None]:
    """Return the directions of one step and the optimiser's state after it."""
    if recipe.optimiser == "sgd":
        if not recipe.momentum:
            return gradients, None
        before = state or [torch.zeros_like(g) for g in gradients]
        after = [recipe.momentum * m + g for m, g in zip(before, gradients, strict=True)]
        return after, after
    count = len(gradients)
    before = state or [torch.zeros_like(g) for g in (*gradients, *gradients)]
    first, second = BETAS
    mean = [first * m + (1 - first) * g for m, g in zip(before[:count], gradients, strict=True)]
    square = [
        second * v + (1 - second) * g * g for v, g in zip(before[count:], gradients, strict=True)
    ]
    fix, spread = 1 - first**number, 1 - second**number
    # The root of 0 has no derivative.
    tiny = torch.finfo(gradients[0].dtype).tiny
    steps = [
        (m / fix) / ((v / spread + tiny).sqrt() + EPSILON)
        for m, v in zip(mean, square, strict=True)
    ]
    return steps, [*mean, *square]
