"""Adam without torch.optim.Adam, whose import of torch.compile takes 2.5 s of every job."""

from collections.abc import Sequence

import torch
from torch.optim.adam import adam


def adam_step(
    values: Sequence[torch.Tensor],
    slopes: Sequence[torch.Tensor],
    state: Sequence[Sequence[torch.Tensor]],
    rate: float,
) -> None:
    """Update `values` in place along gradients `slopes`, with torch.optim.Adam's default settings.

    `state` holds first and second moments, shaped as `values`, and the number of steps taken, ();
    all 0 at first. `rate` is the learning rate.
    """
    first, second, steps = map(list, state)
    adam(
        list(values), list(slopes), first, second, [], steps, lr=rate, beta1=0.9, beta2=0.999,
        eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False,
    )  # fmt: skip
