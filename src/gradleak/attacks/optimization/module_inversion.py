"""Searches on any PyTorch network, by automatic differentiation.

Only the gradients are computed otherwise than for chains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from gradleak.attacks.base import Reconstruction
from gradleak.attacks.optimization.engine.module_gradients import (
    ModuleGradients,
    ModuleMembers,
    ModuleView,
)
from gradleak.attacks.optimization.optimization_attack import Search, noise
from gradleak.client.capture import DTYPES, pick_device
from gradleak.client.gradient_checks import check_gradient
from gradleak.errors import NotApplicable, NumericsError
from gradleak.reading.model_checks import first_line

# In PyTorch's errors about what it differentiates once alone.
ONCE = re.compile("derivative|differentiate twice|double backward", re.IGNORECASE)


def invert(
    attack: Search, views: Sequence[ModuleView], seeds: Sequence[int]
) -> list[Reconstruction | NumericsError]:
    """Attack each view separately, from the view's start or from noise.

    Raises `NotApplicable` if PyTorch differentiates one of the network's operations only once.
    """
    out: list[Reconstruction | NumericsError] = []
    for view, seed in zip(views, seeds, strict=True):
        try:
            out.append(_one(attack, view, seed))
        except NumericsError as error:
            out.append(error)
    return out


def _one(attack: Search, view: ModuleView, seed: int) -> Reconstruction:
    known, labels = view.known, view.known.labels or ()
    check_gradient(known.chain, known.gradients)
    device = pick_device(attack.device)
    network = ModuleGradients(view, DTYPES[attack.precision], device)
    start = known.starts
    if start is None:
        shape = 1, len(labels), *known.chain.input
        chance = np.random.default_rng((seed, 0))
        start = noise(attack.start, chance, shape, (known.low, known.high))
    norm = np.sqrt(sum(np.sum(v.astype(np.float64) ** 2) for v in known.gradients.values()))
    shared = {name: value.astype(np.float64) / norm for name, value in known.gradients.items()}
    targets, scale = network.targets([shared]), network.tensor(np.array([1.0 / norm]))
    given = torch.tensor([labels], device=network.device), network.tensor(start[:1])
    # Nothing is drawn for labels, which are known.
    rest = torch.empty(1, 0, 0), torch.tensor([(seed, 0)])
    moved = None if view.after is None else torch.zeros(1, 1, dtype=network.dtype)
    members = ModuleMembers(network, targets, scale, *given, *rest, moved)  # type: ignore[arg-type]
    with _named(type(view.module).__name__), network.running():
        (found,) = attack.search(members, [known])
    return found


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not ONCE.search(str(error)):
            raise
        raise NotApplicable(
            f"An operation of {name} cannot be differentiated twice ({first_line(error)}), as "
            "searches need; replace it."
        ) from error
