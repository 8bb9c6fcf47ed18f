"""Adam without torch.optim.Adam, whose import brings torch.compile: 2.5 s of every job."""

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
    """One step in place, with the settings that torch.optim.Adam has by default.

    Parameters
    ----------
    values, slopes
        What is moved, and the gradients in it.
    state
        First and second moments, shaped as `values`, and the steps done so far, (); all 0 at first.
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
