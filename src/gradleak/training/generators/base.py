"""Base of generators."""

import torch
from torch import nn


class Generator(nn.Module):
    """Generate images of a class from a latent vector."""

    latent: int  # n, the length of a latent vector z; trained with z ~ N(0, I)
    classes: int  # labels are 0 to classes − 1
    shape: tuple[int, int, int]  # (C, H, W) of an image

    @torch.no_grad()
    def images(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) in [0, 1] of latent vectors z (B, n) and labels (B,)."""
        found: torch.Tensor = self(z, labels)
        return found
