"""Interface of a generator."""

from typing import Protocol, Self

import torch


class Generator(Protocol):
    """Generate images of a class from a latent vector."""

    latent: int  # n, the length of a latent vector z; trained with z ~ N(0, I)
    classes: int  # labels are 0 to classes − 1
    shape: tuple[int, int, int]  # (C, H, W) of an image

    def images(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) in [0, 1] of latent vectors z (B, n) and labels (B,)."""

    def placed(self, device: torch.device) -> Self:
        """Copy on a device."""
