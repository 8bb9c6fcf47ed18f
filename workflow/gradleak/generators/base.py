"""The contract of a generator."""

from __future__ import annotations

from typing import Protocol, Self

import torch


class Generator(Protocol):
    """Draws images of a class from a latent vector.

    Attributes
    ----------
    latent
        n, the numbers of a latent vector z; z ~ N(0, I) is what it was trained with.
    classes
        Labels are 0 to classes − 1.
    shape
        (C, H, W) of an image.
    """

    latent: int
    classes: int
    shape: tuple[int, int, int]

    def images(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) in [0, 1] of latent vectors z (B, n) and labels (B,)."""

    def placed(self, device: torch.device) -> Self:
        """The same on a device."""
