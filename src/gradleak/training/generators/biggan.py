"""BigGAN-deep (Brock et al. 2019): its generator, for inference only, and its published weights.

Modules have the names of the published file. Spectral norms are divided out of its weights and the
norms' statistics are those of one truncation, so neither is implemented here.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gradleak.errors import DataError
from gradleak.training.generators.base import Generator

PUBLISHED = (
    "https://s3.amazonaws.com/models.huggingface.co/biggan/biggan-deep-256-pytorch_model.bin"
)
REMEDY = f"download {PUBLISHED} and set generators: NAME: weights to where it lies"

# Side of the first grid, its channels in units of the width, and the bottleneck's factor.
FIRST, WIDENING, NARROWING = 4, 16, 4
# Channels of the queries and of the values of attention, as fractions of the input's.
QUERIES, VALUES = 8, 2

Tensors = Mapping[str, torch.Tensor]


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
        return cls(**{**record, "blocks": tuple(map(tuple, record["blocks"]))})

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


class Norm(nn.Module):
    """(x − mean) / √(variance + eps) · γ + β by fixed statistics.

    γ and β are its own, or 1 + S c and T c under a condition c.
    """

    running_means: torch.Tensor
    running_vars: torch.Tensor

    def __init__(self, channels: int, eps: float, condition: int = 0) -> None:
        super().__init__()
        self.register_buffer("running_means", torch.zeros(channels))
        self.register_buffer("running_vars", torch.ones(channels))
        self.eps = eps
        if condition:
            self.scale = nn.Linear(condition, channels, bias=False)
            self.offset = nn.Linear(condition, channels, bias=False)
        else:
            self.weight = nn.Parameter(torch.ones(channels))
            self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor, condition: torch.Tensor | None = None) -> torch.Tensor:
        """Normalise x (B, C, H, W), under conditions (B, m) if it has none of its own."""
        weight, bias = (self.weight, self.bias) if condition is None else (None, None)
        fixed = (self.running_means, self.running_vars)
        normed = functional.batch_norm(x, *fixed, weight, bias, eps=self.eps)
        if condition is None:
            return normed
        scale, offset = self.scale(condition), self.offset(condition)
        return torch.addcmul(offset[..., None, None], normed, 1.0 + scale[..., None, None])


class Block(nn.Module):
    """Bottleneck of four convolutions with a skip connection of the first channels."""

    def __init__(self, entering: int, leaving: int, doubles: bool, sizes: Sizes) -> None:
        super().__init__()
        inner = entering // NARROWING
        self.leaving, self.doubles = leaving, doubles
        for k, (before, after) in enumerate(pairwise((entering, inner, inner, inner, leaving))):
            kernel = 3 if k in (1, 2) else 1
            self.add_module(f"bn_{k}", Norm(before, sizes.eps, sizes.condition))
            self.add_module(f"conv_{k}", nn.Conv2d(before, after, kernel, padding=kernel // 2))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Map x (B, C, H, W) under conditions (B, m)."""
        passed = self._sized(x[:, : self.leaving])
        for k in range(4):
            x = functional.relu(self.get_submodule(f"bn_{k}")(x, condition))
            # Before the first 3x3 convolution, as the pixels of a doubled grid need smoothing.
            x = self.get_submodule(f"conv_{k}")(self._sized(x) if k == 1 else x)
        return x + passed

    def _sized(self, x: torch.Tensor) -> torch.Tensor:
        if not self.doubles:
            return x
        return functional.interpolate(x, scale_factor=2.0, mode="nearest")


class Attention(nn.Module):
    """Self-attention (Zhang et al. 2019): positions attend to a grid of half the side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        few, half = channels // QUERIES, channels // VALUES
        self.snconv1x1_theta = nn.Conv2d(channels, few, 1, bias=False)
        self.snconv1x1_phi = nn.Conv2d(channels, few, 1, bias=False)
        self.snconv1x1_g = nn.Conv2d(channels, half, 1, bias=False)
        self.snconv1x1_o_conv = nn.Conv2d(half, channels, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """Map x (B, C, H, W), H and W even, under any condition."""
        query = self.snconv1x1_theta(x).flatten(2)
        key = functional.max_pool2d(self.snconv1x1_phi(x), 2).flatten(2)
        value = functional.max_pool2d(self.snconv1x1_g(x), 2).flatten(2)
        weights = torch.softmax(query.mT @ key, 2)
        found = (value @ weights.mT).unflatten(2, x.shape[2:])
        return x + self.gamma * self.snconv1x1_o_conv(found)


class BigGan(Generator):
    """Generator from z and a class to an image."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.latent, self.classes = sizes.latent, sizes.classes
        self.shape = (3, sizes.side, sizes.side)
        width = sizes.width
        layers: list[nn.Module] = [
            Block(width * entering, width * leaving, doubles, sizes)
            for doubles, entering, leaving in sizes.blocks
        ]
        layers.insert(sizes.attention, Attention(width * sizes.blocks[sizes.attention][1]))
        self.embeddings = nn.Linear(sizes.classes, sizes.embedding, bias=False)
        self.generator = nn.ModuleDict({
            "gen_z": nn.Linear(sizes.condition, FIRST**2 * WIDENING * width),
            "layers": nn.ModuleList(layers),
            "bn": Norm(width, sizes.eps),
            "conv_to_rgb": nn.Conv2d(width, width, 3, padding=1),
        })  # fmt: skip

    def forward(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, S, S) in (−1, 1), at the network's own size."""
        parts = self.generator
        condition = torch.cat([z, self.embeddings.weight.T[labels]], 1)
        # The file's order is that of grids with channels last.
        grids = parts["gen_z"](condition).unflatten(1, (FIRST, FIRST, -1))
        x = grids.permute(0, 3, 1, 2).contiguous()
        for layer in parts["layers"].children():
            x = layer(x, condition)
        # Of the last convolution's channels only the first three are colours.
        return torch.tanh(parts["conv_to_rgb"](functional.relu(parts["bn"](x)))[:, :3])

    @torch.no_grad()
    def images(self, z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images as in `Generator`, resized to `side` by means over areas."""
        found, side = (self(z, labels) + 1.0) / 2.0, self.sizes.side
        if found.shape[-1] == side:
            return found
        return functional.interpolate(found, size=(side, side), mode="area")


def convert(path: str, sizes: Sizes, truncation: float = 1.0) -> dict[str, np.ndarray]:
    """State dict of `BigGan` of some `sizes` from the published file.

    The file is a PyTorch state dict with the keys of huggingface's pytorch-pretrained-BigGAN, read
    without running any of its code. The norms' statistics are those of a `truncation` in (0, 1],
    interpolated linearly. Raises `DataError` if the file is missing, no state dict, or of another
    network.
    """
    state = _read(path)
    found: dict[str, np.ndarray] = {}
    with torch.device("meta"):
        shapes = {name: list(value.shape) for name, value in BigGan(sizes).state_dict().items()}
    for name, shape in shapes.items():
        plain = name.startswith(("embeddings.", "generator.bn.")) or not name.endswith(".weight")
        key = name if plain else f"{name}_orig"
        try:
            value = state[key] if plain else _divided(state, name)
        except KeyError as error:
            raise DataError(
                f"{path} lacks {error.args[0]}, so it is not a BigGAN-deep-256; {REMEDY}."
            ) from None
        if name.endswith(("running_means", "running_vars")):
            value = _at(value, truncation, sizes.statistics)
        if list(value.shape) != shape:
            raise DataError(
                f"{path} has {key} of {list(value.shape)} where {shape} is expected, "
                f"so it is not a BigGAN-deep-256; {REMEDY}."
            )
        if not torch.isfinite(value).all():
            raise DataError(f"{path} has {key} with NaN or infinity; {REMEDY}.")
        found[name] = value.float().contiguous().numpy()
    return found


def _read(path: str) -> Tensors:
    """Tensors in the file, by name; `DataError` for any other content."""
    if not Path(path).is_file():
        raise DataError(
            f"{path} is missing: BigGAN's weights are not downloaded by themselves; {REMEDY}."
        )
    try:
        with warnings.catch_warnings():
            # The error covers PyTorch's warnings on an unknown file.
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # A damaged pickle may raise anything.
        reason = str(error).strip().partition("\n")[0].rstrip(".:")
        raise DataError(f"{path} is not a file of weights alone ({reason}); {REMEDY}.") from error
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in state.items()
    ):
        raise DataError(f"{path} holds something else than tensors by name; {REMEDY}.")
    return state


def _divided(state: Tensors, key: str) -> torch.Tensor:
    """W / (uᵀ W v), rows of W by outputs, as PyTorch's spectral norm at inference."""
    weight, left, right = (state[f"{key}_{part}"] for part in ("orig", "u", "v"))
    rows = weight.flatten(1)
    if left.shape != rows.shape[:1] or right.shape != rows.shape[1:]:
        return weight.new_empty(0)
    return weight / (left @ rows @ right)


def _at(rows: torch.Tensor, truncation: float, statistics: int) -> torch.Tensor:
    """Statistics (C,) at a truncation, from those (statistics, C) at even steps from 0 to 1."""
    if len(rows) != statistics:
        return rows
    place = truncation * (statistics - 1)
    below = min(math.floor(place), statistics - 2)
    return torch.lerp(rows[below], rows[below + 1], place - below)
