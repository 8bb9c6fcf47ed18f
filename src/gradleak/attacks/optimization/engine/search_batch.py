"""A batch of independent optimisations, and distances of many candidates for one of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients
from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients

# Limit in bytes of candidates' gradients held at once on an accelerator.
MEMORY = 4 * 2**30


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
    mismatched: bool = False  # all of them; see `gradleak.attacks.keylock.Opening`

    def __len__(self) -> int:
        return len(self.starts)

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
            self.mismatched,
        )

    def parts(self) -> list[slice]:
        """Slices of members to compute at once."""
        size = self.network.at_once(self.starts.shape[1])
        return [slice(i, min(i + size, len(self))) for i in range(0, len(self), size)]


class Best:
    """Each member's best point so far, or the last one with a finite value."""

    def __init__(self, like: Tensor, images: Tensor, logits: Tensor, *, last: bool = False) -> None:
        self._last = last
        self.value = self.distance = torch.full_like(like, torch.inf)
        self.images, self.logits = images, logits

    def offer(self, value: Tensor, distance: Tensor, *point: Tensor) -> None:
        """Keep distance, images and logits (if they change) of the members that improved."""
        better = value.isfinite() if self._last else value < self.value
        names = ("value", "distance", "images", "logits")
        for name, new in zip(names, (value, distance, *point), strict=False):
            rows = better.view(-1, *[1] * (new.ndim - 1))
            setattr(self, name, torch.where(rows, new, getattr(self, name)))


class Population:
    """||g − t||² of candidates for one member's image, over all parameters that were shared.

    `member` is one restart (M = 1) with K = 1, whose targets t have norm 1; `size` is the number of
    candidates per call, of which no more are held at once than `Members.parts` computes at once.
    """

    def __init__(self, member: Members, size: int) -> None:
        network = member.network
        most = network.at_once(1)
        if network.device.type != "cpu":
            bytes_each = 2 * network.chain.parameters * network.dtype.itemsize
            most = max(1, MEMORY // bytes_each)
        parts = -(-size // min(size, most))
        self._size = -(-size // parts)
        # The same member repeated; shared weights are not copied.
        again = torch.zeros(self._size, dtype=torch.long, device=member.scale.device)
        self._network = network.select(again)
        assert member.labels is not None
        self._labels, self._scale = member.labels[again], member.scale[again]
        self._targets = member.targets

    @torch.no_grad()
    def distances(self, images: Tensor) -> Tensor:
        """Return squared distances (P,) of candidates (P, 1, C, H, W)."""
        return torch.cat([self._of(part) for part in images.split(self._size)])

    def _of(self, images: Tensor) -> Tensor:
        count = len(images)
        network = self._network if count == self._size else self._network.select(slice(0, count))
        found = network(images.to(self._scale), self._labels[:count], self._scale[:count])
        squares = [
            torch.linalg.vector_norm(value.sub_(target).flatten(1), dim=1).square()
            for value, target in zip(found, self._targets, strict=True)
        ]
        return torch.stack(squares).sum(0)
