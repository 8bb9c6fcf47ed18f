"""Searches side by side: what each is to match and where it starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradleak.matching.branches import BranchGradients
from gradleak.matching.chain_gradients import ChainGradients, members_at_once


@dataclass(frozen=True)
class Members:
    """M searches under one architecture.

    Attributes
    ----------
    network
        The network, with weights of each member or shared ones.
    targets
        Shared gradients (M, ...), scaled to norm 1 over all parameters.
    scale
        (M,), what the gradients were multiplied by for that.
    labels
        (M, K), None where they are searched for.
    starts
        (M, K, C, H, W).
    logits
        Dummy logits (M, K, outputs) that unknown labels start from.
    seeds
        (M, 2) integers: the run's seed and the start's number, for what else is drawn.
    scaling
        γ and β of locked layers (M, 2 Σ O) that a search for them starts from, None for no search.
    """

    network: ChainGradients | BranchGradients
    targets: list[torch.Tensor]
    scale: torch.Tensor
    labels: torch.Tensor | None
    starts: torch.Tensor
    logits: torch.Tensor
    seeds: torch.Tensor
    scaling: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def gradients(self) -> ChainGradients:
        """The network, where it is one that `ChainGradients` knows."""
        assert isinstance(self.network, ChainGradients)
        return self.network

    def select(self, index: torch.Tensor | slice) -> Members:
        """Members `index` only; a slice copies nothing."""
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
        network, batch = self.network, self.starts.shape[1]
        if isinstance(network, BranchGradients):
            size = network.at_once(batch)
        else:
            size = members_at_once(network.chain, batch, network.dtype, self.starts.device)
        return [slice(i, min(i + size, len(self))) for i in range(0, len(self), size)]
