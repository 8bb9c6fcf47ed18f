"""Adam without torch.optim.Adam, whose import of torch.compile takes 2.5 s of every job."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim.adam import adam


def adam_step(
    values: Sequence[torch.Tensor],
    slopes: Sequence[torch.Tensor],
    state: Sequence[Sequence[torch.Tensor]],
    rate: float,
) -> None:
    """Take one step in place, with torch.optim.Adam's default settings.

    Parameters
    ----------
    values, slopes
        Optimised tensors and their gradients.
    state
        First and second moments, shaped as `values`, and the steps taken, (); all 0 at first.
    rate
        Learning rate.
    """
    first, second, steps = map(list, state)
    adam(
        list(values),
        list(slopes),
        first,
        second,
        [],
        steps,
        amsgrad=False,
        beta1=0.9,
        beta2=0.999,
        lr=rate,
        weight_decay=0.0,
        eps=1e-8,
        maximize=False,
    )
