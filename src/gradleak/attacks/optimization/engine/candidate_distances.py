"""Gradient distances of many candidate images of one run."""

from __future__ import annotations

import torch

from gradleak.attacks.optimization.engine.chain_gradients import members_at_once
from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients
from gradleak.attacks.optimization.engine.search_batch import Members

# Limit in bytes of gradients held at once on an accelerator.
MEMORY = 4 * 2**30


class Population:
    """||g − t||² of candidates for one member's image, over all parameters that were shared.

    `member` is one restart (M = 1) with K = 1, whose targets t have norm 1 over all parameters;
    `size` is the number of candidates per call. No more candidates' gradients are held at once
    than `Members.parts` computes at once, whatever the population.
    """

    def __init__(self, member: Members, size: int) -> None:
        at_once = _at_once(member, size)
        parts = -(-size // at_once)
        self._size = -(-size // parts)
        # The same member repeated; shared weights are not copied.
        again = torch.zeros(self._size, dtype=torch.long, device=member.scale.device)
        self._network = member.network.select(again)
        assert member.labels is not None
        self._labels, self._scale = member.labels[again], member.scale[again]
        self._targets = member.targets

    @torch.no_grad()
    def distances(self, images: torch.Tensor) -> torch.Tensor:
        """Return squared distances (P,) of candidates (P, 1, C, H, W)."""
        return torch.cat([self._of(part) for part in images.split(self._size)])

    def _of(self, images: torch.Tensor) -> torch.Tensor:
        """Squared distances of candidates that are computed at once."""
        count = len(images)
        network = self._network if count == self._size else self._network.select(slice(0, count))
        images = images.to(self._scale)
        found = network(images, self._labels[:count], self._scale[:count])
        squares = [
            torch.linalg.vector_norm(value.sub_(target).flatten(1), dim=1).square()
            for value, target in zip(found, self._targets, strict=True)
        ]
        return torch.stack(squares).sum(0)


def _at_once(member: Members, size: int) -> int:
    """Number of candidates to compute at once."""
    network = member.network
    if network.device.type != "cpu":
        bytes_each = 2 * network.chain.parameters * network.dtype.itemsize
        return max(1, min(size, MEMORY // bytes_each))
    if isinstance(network, BranchGradients):
        return min(size, network.at_once(1))
    return min(size, members_at_once(network.chain, 1, network.dtype, network.device))
