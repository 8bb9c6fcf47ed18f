"""SGD without torch.optim.SGD, whose first step imports torch.compile: 1 to 2 s of every job."""

from collections.abc import Iterable

import torch
from torch.optim.sgd import sgd


class Sgd:
    """Stochastic gradient descent with momentum, bit-identical to the step of `torch.optim.SGD`.

    `parameters` are updated in place, by the gradients that a backward pass accumulates.
    `momentum`, `nesterov` and `weight_decay` as in `torch.optim.SGD`, without dampening. The
    attribute `buffers` holds the momentum by parameter, of those updated so far.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
    ) -> None:
        self.parameters = list(parameters)
        self.momentum, self.nesterov, self.weight_decay = momentum, nesterov, weight_decay
        self.buffers: dict[torch.nn.Parameter, torch.Tensor] = {}

    def forget_gradients(self) -> None:
        """Set all gradients to None."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update every parameter that has a gradient, at learning rate `rate`."""
        moved = [p for p in self.parameters if p.grad is not None]
        slopes = [p.grad for p in moved if p.grad is not None]
        buffers = [self.buffers.get(p) for p in moved]
        sgd(
            list(moved), slopes, buffers, lr=rate, momentum=self.momentum, nesterov=self.nesterov,
            weight_decay=self.weight_decay, dampening=0.0, maximize=False,
        )  # fmt: skip
        for parameter, buffer in zip(moved, buffers, strict=True):
            if buffer is not None:
                self.buffers[parameter] = buffer
