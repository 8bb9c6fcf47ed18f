"""SGD and Adam without the classes of torch.optim, which import torch.compile: 1 to 2.5 s a job."""

from collections.abc import Iterable, Sequence

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

BETA2 = 0.999  # torch.optim.Adam's default decay of second moments


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


def adam_step(
    values: Sequence[torch.Tensor],
    slopes: Sequence[torch.Tensor],
    state: Sequence[Sequence[torch.Tensor]],
    rate: float,
    beta2: float = BETA2,
) -> None:
    """Update `values` in place along gradients `slopes`, with torch.optim.Adam's default settings.

    `state` holds first and second moments, shaped as `values`, and the number of steps taken, ();
    all 0 at first. `rate` is the learning rate, `beta2` the decay of the second moments.
    """
    first, second, steps = map(list, state)
    adam(
        list(values), list(slopes), first, second, [], steps, lr=rate, beta1=0.9, beta2=beta2,
        eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False,
    )  # fmt: skip
