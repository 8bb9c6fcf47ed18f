"""Gradient distances of many candidate images of one run."""

import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.search_batch import Members, at_once

# Limit in bytes of gradients held at once on an accelerator.
MEMORY = 4 * 2**30


class Population:
    """||g − t||² of candidates for one member's image, over all parameters that were shared.

    `member` is one restart (M = 1) with K = 1, whose targets t have norm 1; `size` is the number of
    candidates per call, of which no more are held at once than `Members.parts` computes at once.
    """

    def __init__(self, member: Members, size: int) -> None:
        network = member.network
        most = at_once(network, 1)
        if network.device.type != "cpu":
            bytes_each = 2 * network.chain.parameters * network.dtype.itemsize
            most = max(1, MEMORY // bytes_each)
        parts = -(-size // min(size, most))
        self._size = -(-size // parts)
        # The same member repeated; shared weights are not copied.
        again = torch.zeros(self._size, dtype=torch.long, device=member.scale.device)
        self._network = member.network.select(again)
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
        images = images.to(self._scale)
        found = network(images, self._labels[:count], self._scale[:count])
        squares = [
            torch.linalg.vector_norm(value.sub_(target).flatten(1), dim=1).square()
            for value, target in zip(found, self._targets, strict=True)
        ]
        return torch.stack(squares).sum(0)
