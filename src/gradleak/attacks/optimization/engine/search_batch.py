"""A batch of independent optimisations: targets and initial points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients, members_at_once
from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients


@dataclass(frozen=True)
class Members:
    """M optimisations (restarts) with one architecture."""

    network: ChainGradients | BranchGradients  # with weights of each member or shared ones
    targets: list[Tensor]  # shared gradients (M, ...), scaled to norm 1 over all parameters
    scale: Tensor  # (M,), factor of the gradients that gives this norm
    labels: Tensor | None  # (M, K), None where they are optimised
    starts: Tensor  # (M, K, C, H, W)
    logits: Tensor  # initial dummy logits (M, K, outputs) of unknown labels
    # (M, 2) integers: the run's seed and the restart's number, for other random numbers.
    seeds: Tensor
    # Initial γ and β of locked layers (M, 2 Σ O), None if they are not fitted.
    scaling: Tensor | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def gradients(self) -> ChainGradients:
        """The network, if it is of type `ChainGradients`."""
        assert isinstance(self.network, ChainGradients)
        return self.network

    def select(self, index: Tensor | slice) -> Members:
        """Select members `index`; a slice copies nothing."""
        return Members(
            self.network.select(index),
            [target[index] for target in self.targets],
            self.scale[index],
            None if self.labels is None else self.labels[index],
            self.starts[index],
            self.logits[index],
            self.seeds[index],
            None if self.scaling is None else self.scaling[index],
        )

    def parts(self) -> list[slice]:
        """Slices of members to compute at once."""
        size = at_once(self.network, self.starts.shape[1])
        return [slice(i, min(i + size, len(self))) for i in range(0, len(self), size)]


def at_once(network: ChainGradients | BranchGradients, batch: int) -> int:
    """Number of members of `batch` images to compute at once."""
    if isinstance(network, BranchGradients):
        return network.at_once(batch)
    return members_at_once(network.chain, batch, network.dtype, network.device)


class Best:
    """Each member's best point so far."""

    def __init__(self, like: Tensor, images: Tensor, logits: Tensor) -> None:
        self.value = self.distance = torch.full_like(like, torch.inf)
        self.images, self.logits = images, logits

    def offer(self, value: Tensor, distance: Tensor, *point: Tensor) -> None:
        """Keep distance, images and logits (if they change) of the members that improved."""
        better = value < self.value
        self.value = torch.where(better, value, self.value)
        self.distance = torch.where(better, distance, self.distance)
        for name, new in zip(("images", "logits"), point, strict=False):
            rows = better.view(-1, *[1] * (new.ndim - 1))
            setattr(self, name, torch.where(rows, new, getattr(self, name)))
