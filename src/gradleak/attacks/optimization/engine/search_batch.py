"""A batch of independent optimisations: targets and initial points."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients, members_at_once
from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients


@dataclass(frozen=True)
class Members:
    """M optimisations (restarts) with one architecture."""

    network: ChainGradients | BranchGradients  # with weights of each member or shared ones
    targets: list[torch.Tensor]  # shared gradients (M, ...), scaled to norm 1 over all parameters
    scale: torch.Tensor  # (M,), factor of the gradients that gives this norm
    labels: torch.Tensor | None  # (M, K), None where they are optimised
    starts: torch.Tensor  # (M, K, C, H, W)
    logits: torch.Tensor  # initial dummy logits (M, K, outputs) of unknown labels
    # (M, 2) integers: the run's seed and the restart's number, for other random numbers.
    seeds: torch.Tensor
    # Initial γ and β of locked layers (M, 2 Σ O), None if they are not fitted.
    scaling: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def gradients(self) -> ChainGradients:
        """The network, if it is of type `ChainGradients`."""
        assert isinstance(self.network, ChainGradients)
        return self.network

    def select(self, index: torch.Tensor | slice) -> Members:
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
        network, batch = self.network, self.starts.shape[1]
        if isinstance(network, BranchGradients):
            size = network.at_once(batch)
        else:
            size = members_at_once(network.chain, batch, network.dtype, self.starts.device)
        return [slice(i, min(i + size, len(self))) for i in range(0, len(self), size)]
