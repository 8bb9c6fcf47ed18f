"""The generator of BigGAN-deep (Brock et al. 2019), for inference only.

Spectral norms are divided out of the weights and the norms' statistics are those of one truncation
(`gradleak.training.generators.biggan_weights` does both), so neither is implemented here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional

# Side of the first grid, its channels in units of the width, and the bottleneck's factor.
FIRST, WIDENING, NARROWING = 4, 16, 4
# Channels of the queries and of the values of attention, as fractions of the input's.
QUERIES, VALUES = 8, 2


@dataclass(frozen=True)
class Sizes:
    """Sizes of the generator."""

    # (whether the grid doubles, input and output channels in units of `width`) of each
    blocks: tuple[tuple[bool, int, int], ...]
    attention: int  # index, from 0, of the block after the attention layer
    latent: int = 128  # length of z; z and the class embedding condition every block
    embedding: int = 128  # length of the class embedding
    width: int = 128  # channels at the finest grid
    classes: int = 1000  # number of classes
    # truncations, evenly spaced from 0 to 1, with norm statistics in the published file
    statistics: int = 51
    eps: float = 1e-4  # of the norms
    side: int = 256  # side that images are resized to

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Create from a JSON record."""
        blocks = tuple((bool(b[0]), int(b[1]), int(b[2])) for b in record["blocks"])
        return cls(**{**record, "blocks": blocks})

    @property
    def condition(self) -> int:
        """Length of a block's condition: z and the class embedding."""
        return self.latent + self.embedding


BLOCKS = (
    (False, 16, 16), (True, 16, 16), (False, 16, 16), (True, 16, 8), (False, 8, 8), (True, 8, 8),
    (False, 8, 8), (True, 8, 4), (False, 4, 4), (True, 4, 2), (False, 2, 2), (True, 2, 1),
)  # fmt: skip
# Images of 256x256, as in the published file of that name.
DEEP_256 = Sizes(BLOCKS, attention=8)


class _Statistics(nn.Module):
    """Norm by fixed statistics."""

    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))
        self.eps = eps


class Norm(_Statistics):
    """(x − mean) / √(variance + eps) · (1 + S c) + T c, under the condition c."""

    def __init__(self, channels: int, condition: int, eps: float) -> None:
        super().__init__(channels, eps)
        self.scale = nn.Linear(condition, channels, bias=False)
        self.offset = nn.Linear(condition, channels, bias=False)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Normalise x (B, C, H, W) under conditions (B, m)."""
        normed = functional.batch_norm(x, self.mean, self.variance, eps=self.eps)
        scale, offset = self.scale(condition), self.offset(condition)
        return torch.addcmul(offset[..., None, None], normed, 1.0 + scale[..., None, None])


class LastNorm(_Statistics):
    """Norm with a scale and a shift of its own."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__(channels, eps)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x (B, C, H, W)."""
        return functional.batch_norm(
            x, self.mean, self.variance, self.weight, self.bias, eps=self.eps
        )


class Block(nn.Module):
    """Bottleneck of four convolutions with a skip connection of the first channels."""

    def __init__(self, entering: int, leaving: int, doubles: bool, sizes: Sizes) -> None:
        super().__init__()
        inner = entering // NARROWING
        through = (entering, inner, inner, inner, leaving)
        self.norms = nn.ModuleList(
            Norm(channels, sizes.condition, sizes.eps) for channels in through[:-1]
        )
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel, padding=kernel // 2)
            for before, after, kernel in zip(through[:-1], through[1:], (1, 3, 3, 1), strict=True)
        )
        self.leaving, self.doubles = leaving, doubles

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Map x (B, C, H, W) under conditions (B, m)."""
        passed = self._sized(x[:, : self.leaving])
        pairs = zip(self.norms, self.convolutions, strict=True)
        for number, (norm, convolution) in enumerate(pairs):
            x = functional.relu(norm(x, condition))
            # Before the first 3x3 convolution, as the pixels of a doubled grid need smoothing.
            x = convolution(self._sized(x) if number == 1 else x)
        return x + passed

    def _sized(self, x: torch.Tensor) -> torch.Tensor:
        if not self.doubles:
            return x
        return functional.interpolate(x, scale_factor=2.0, mode="nearest")


class Attention(nn.Module):
    """Self-attention (Zhang et al. 2019): positions attend to a grid of half the side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, channels // QUERIES, 1, bias=False)
        self.key = nn.Conv2d(channels, channels // QUERIES, 1, bias=False)
        self.value = nn.Conv2d(channels, channels // VALUES, 1, bias=False)
        self.leave = nn.Conv2d(channels // VALUES, channels, 1, bias=False)
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x (B, C, H, W), H and W even."""
        query = self.query(x).flatten(2)
        key = functional.max_pool2d(self.key(x), 2).flatten(2)
        value = functional.max_pool2d(self.value(x), 2).flatten(2)
        weights = torch.softmax(query.mT @ key, 2)
        found = (value @ weights.mT).unflatten(2, x.shape[2:])
        return x + self.gain * self.leave(found)


class BigGan(nn.Module):
    """Generator from z and a class to an image."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.latent, self.classes = sizes.latent, sizes.classes
        self.shape = (3, sizes.side, sizes.side)
        width = sizes.width
        self.embedding = nn.Linear(sizes.classes, sizes.embedding, bias=False)
        self.enter = nn.Linear(sizes.condition, FIRST**2 * WIDENING * width)
        self.blocks = nn.ModuleList(
            Block(width * entering, width * leaving, doubles, sizes)
            for doubles, entering, leaving in sizes.blocks
        )
        self.attention = Attention(width * sizes.blocks[sizes.attention][1])
        self.norm = LastNorm(width, sizes.eps)
        self.leave = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, S, S) in (−1, 1), at the network's own size."""
        condition = torch.cat([z, self.embedding.weight.T[labels]], 1)
        # The file's order is that of grids with channels last.
        x = self.enter(condition).unflatten(1, (FIRST, FIRST, -1)).permute(0, 3, 1, 2).contiguous()
        for number, block in enumerate(self.blocks):
            if number == self.sizes.attention:
                x = self.attention(x)
            x = block(x, condition)
        # Of the last convolution's channels only the first three are colours.
        found = self.leave(functional.relu(self.norm(x)))[:, :3]
        return torch.tanh(found)

    @torch.no_grad()
    def images(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images as `generators.base.Generator` says; resized to `side` by means over areas."""
        found, side = (self(z, labels) + 1.0) / 2.0, self.sizes.side
        if found.shape[-1] == side:
            return found
        return functional.interpolate(found, size=(side, side), mode="area")

    def placed(self, device: torch.device) -> Self:
        """Copy on a device."""
        return self.to(device)
