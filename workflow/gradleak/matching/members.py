"""Searches side by side: what each is to match and where it starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradleak.matching.chain_gradients import ChainGradients, members_at_once


@dataclass(frozen=True)
class Members:
    """M searches under one architecture.

    Attributes
    ----------
    gradients
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
    """

    gradients: ChainGradients
    targets: list[torch.Tensor]
    scale: torch.Tensor
    labels: torch.Tensor | None
    starts: torch.Tensor
    logits: torch.Tensor

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, index: torch.Tensor | slice) -> Members:
        """Members `index` only; a slice copies nothing."""
        return Members(
            self.gradients.select(index),
            [target[index] for target in self.targets],
            self.scale[index],
            None if self.labels is None else self.labels[index],
            self.starts[index],
            self.logits[index],
        )

    def parts(self) -> list[slice]:
        """Slices of members to compute at once."""
        network = self.gradients
        size = members_at_once(
            network.chain, self.starts.shape[1], network.dtype, self.starts.device
        )
        return [slice(i, min(i + size, len(self))) for i in range(0, len(self), size)]
