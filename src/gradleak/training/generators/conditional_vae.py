"""A small class-conditional variational autoencoder (Kingma and Welling 2014; Sohn et al. 2015)."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from gradleak.errors import ConfigError
from gradleak.training.generators.base import Generator

# Side of the coarsest grid: halved while even and above SMALLEST, then at most LARGEST.
SMALLEST, LARGEST = 4, 8
WIDEST = 4  # channels at a grid halved j times: width · min(2^j, WIDEST)
EMBEDDED = 32  # length of a class embedding
GROUP = 8  # channels of a norm's group


@dataclass(frozen=True)
class Sizes:
    """Sizes of the autoencoder.

    Raises `ConfigError` if images are not square, their side is not 4 to 8 times a power of two, or
    the width is not a multiple of 8.
    """

    shape: tuple[int, int, int]  # (C, H, W) of an image, H = W
    classes: int  # number of classes
    latent: int = 64  # n, the length of a latent vector
    width: int = 32  # channels at full resolution, a multiple of 8

    def __post_init__(self) -> None:
        _, height, width = self.shape
        if height != width or self.grid > LARGEST:
            raise ConfigError(
                f"A conditional_vae draws square images whose side is {SMALLEST} to {LARGEST} "
                f"times a power of two, not {height}x{width}; set another size, for instance 32."
            )
        if self.width % GROUP:
            raise ConfigError(
                f"width: {self.width} of a conditional_vae is not a multiple of {GROUP}; give one."
            )

    @property
    def halvings(self) -> int:
        """Number of times that the side is halved."""
        side, count = self.shape[1], 0
        while side > SMALLEST and side % 2 == 0:
            side, count = side // 2, count + 1
        return count

    @property
    def grid(self) -> int:
        """Side of the coarsest grid."""
        return int(self.shape[1] >> self.halvings)

    @property
    def channels(self) -> list[int]:
        """Channels of each grid, the finest first."""
        return [self.width * min(2**j, WIDEST) for j in range(self.halvings + 1)]


def _norms(channels: list[int]) -> nn.ModuleList:
    return nn.ModuleList(nn.GroupNorm(each // GROUP, each) for each in channels)


class Decoder(Generator):
    """From (z, class) to an image: the generator.

    A class without training images keeps its embedding 0, and so gives what the classes have in
    common.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.latent, self.classes, self.shape = sizes.latent, sizes.classes, sizes.shape
        channels = sizes.channels
        self.embedding = nn.Embedding(sizes.classes, EMBEDDED)
        nn.init.zeros_(self.embedding.weight)
        self.enter = nn.Linear(sizes.latent + EMBEDDED, channels[-1] * sizes.grid**2)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(*pair, 3, padding=1) for pair in pairwise(channels[::-1])
        )
        self.norms = _norms(channels[-2::-1])
        self.leave = nn.Conv2d(channels[0], sizes.shape[0], 3, padding=1)

    def forward(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images (B, C, H, W) in (0, 1); see `Generator.images`."""
        grid = self.sizes.grid
        x = self.enter(torch.cat([z, self.embedding(labels)], 1))
        x = functional.silu(x).unflatten(1, (-1, grid, grid))
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = functional.silu(norm(convolution(x)))
        return torch.sigmoid(self.leave(x))


class Encoder(nn.Module):
    """From (image, class) to mean and log variance of z; only for training."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        channels = [sizes.shape[0], *sizes.channels[1:]]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(*pair, 3, stride=2, padding=1) for pair in pairwise(channels)
        )
        self.norms = _norms(channels[1:])
        self.embedding = nn.Embedding(sizes.classes, EMBEDDED)
        self.leave = nn.Linear(channels[-1] * sizes.grid**2 + EMBEDDED, 2 * sizes.latent)

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log variance (B, n) each, of images (B, C, H, W) in [0, 1]."""
        x = images
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.silu(norm(convolution(x)))
        mean, spread = self.leave(torch.cat([x.flatten(1), self.embedding(labels)], 1)).chunk(2, 1)
        return mean, spread


class Autoencoder(nn.Module):
    """Encoder and decoder."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(sizes), Decoder(sizes)

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean squared error and mean KL divergence, both scalars.

        With (m, log s²) from the encoder, z = m + s · `noise` (B, n); the error is that of the
        decoder's images (B, C, H, W), and KL(N(m, s²) || N(0, I)) = ½ Σ (m² + s² − 1 − log s²) in
        nats an image.
        """
        mean, spread = self.encoder(images, labels)
        found = self.decoder(mean + noise * (0.5 * spread).exp(), labels)
        divergence = 0.5 * (mean.square() + spread.exp() - 1.0 - spread).sum(1).mean()
        return functional.mse_loss(found, images), divergence


def loss_of(error: torch.Tensor, divergence: torch.Tensor, numbers: int) -> torch.Tensor:
    """½ D log(error) + KL, D = `numbers` of an image.

    −log p(x|z) of a Gaussian whose variance is the maximum-likelihood one, the mean squared error
    itself (Rybkin et al. 2021), so the two terms need no weighting.
    """
    return 0.5 * numbers * error.log() + divergence
