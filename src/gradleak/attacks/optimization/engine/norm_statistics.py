"""Statistics of batch norms' inputs, as a prior for the images of a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Mean and variance by channel (C,) of a norm's input over a batch, by name of the norm.
Statistics = Mapping[str, tuple[np.ndarray, np.ndarray]]


@dataclass
class Watch:
    """Compares the inputs of norms with known statistics whenever the network runs.

    For each norm l with mean m and variance v of the images' features, and known ones m* and v*:
    (‖m − m*‖² + ‖v − v*‖²) / (‖m*‖² + ‖v*‖²), averaged over norms and passes. Yin et al. (2021) sum
    the norms themselves; relative squares give every layer the same weight.
    """

    known: Mapping[str, tuple[Tensor, Tensor]]
    _found: list[Tensor] = field(default_factory=list)

    def begin(self) -> None:
        """Forget earlier passes."""
        self._found.clear()

    def apart(self) -> Tensor:
        """Return the mean over norms and passes since `begin`, differentiable; 0 without any."""
        return torch.stack(self._found).mean() if self._found else torch.zeros(())

    @contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        """Look at the inputs of the norms of a network."""
        with ExitStack() as stack:
            for name, part in module.named_modules():
                if name in self.known:
                    hook = part.register_forward_pre_hook(partial(self._keep, name))
                    stack.callback(hook.remove)
            yield

    def _keep(self, name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        mean, variance = self.known[name]
        own = statistics_of(inputs[0])
        squares = (own[0] - mean).square().sum() + (own[1] - variance).square().sum()
        self._found.append(squares / (mean.square().sum() + variance.square().sum()))


def statistics_of(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance by channel of features (K, C, ...)."""
    others = [axis for axis in range(values.ndim) if axis != 1]
    variance, mean = torch.var_mean(values, dim=others, correction=0)
    return mean, variance
