"""Generators of images and labels, many side by side (Ren et al. 2022, GRNN).

A fixed normal vector z becomes a first 4x4 image by a transposed convolution and a GLU. Blocks
then double its side: nearest neighbours, 3x3 convolution, BatchNorm with the images' own
statistics, GLU; a sigmoid ends the last. At side 32, the blocks' input channels are 128, 64 and
32. At every side the last block has 32, and each block before it halves the channels: its
convolution keeps their number, its GLU drops one half. The label's logits are a linear layer of z.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

# Mean square of a parameter's gradients, and its momentum, shaped as the parameter.
State = tuple[Tensor, Tensor]
# Side of the first image, input channels of the last block.
FIRST, WIDTH = 4, 32
# PyTorch's RMSprop defaults: decay of the mean square, and the ε added to its root.
DECAY, EPSILON = 0.99, 1e-8
# Values of a parameter updated at once, so that all their data stay in a processor core's cache.
PART = 2**15
# Limit in bytes of generators at once on a CPU.
MEMORY = 2**30


@dataclass(frozen=True)
class Layout:
    """Sizes of a generator."""

    image: tuple[int, int, int]  # (C, H, W); H = W is a power of two, 8 or more
    classes: int  # number of logits
    latent: int = 128  # length of z

    @property
    def widths(self) -> list[int]:
        """Input channels of each block, and those of the image."""
        blocks = (self.image[1] // FIRST).bit_length() - 1
        return [WIDTH * 2**n for n in reversed(range(blocks))] + [self.image[0]]

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """Input and output channels of each block's convolution."""
        return [(a, 2 * b) for a, b in zip(self.widths, self.widths[1:], strict=False)]


def makes(image: tuple[int, int, int]) -> bool:
    """True if a generator of images (C, H, W) exists."""
    _, height, width = image
    return height == width and height >= 2 * FIRST and not height & (height - 1)


def draw(layout: Layout, batch: int, seed: Sequence[int]) -> dict[str, np.ndarray]:
    """Draw latents (K, L) and initial weights of one generator, by PyTorch's defaults.

    Latents are N(0, 1). Weights and biases are uniform in ±1/sqrt(fan_in), where `torch` takes the
    outputs of the transposed convolution's filters as fan-in; scales are 1, shifts 0. Names and
    shapes: ``latents`` (K, L), ``first.weight`` (L, c, 4, 4), ``first.bias`` (c,), ``label.weight``
    (classes, L), ``label.bias`` (classes,), and of each block, from 1, ``block1.weight``
    (O, C, 3, 3), ``block1.scale`` and ``block1.shift`` (O,).
    """
    generator = np.random.default_rng(seed)

    def uniform(fan_in: int, *shape: int) -> np.ndarray:
        bound = fan_in**-0.5
        return generator.uniform(-bound, bound, shape)

    first, latent = 2 * layout.widths[0], layout.latent
    out = {
        "latents": generator.standard_normal((batch, latent)),
        "first.weight": uniform(first * FIRST**2, latent, first, FIRST, FIRST),
        "first.bias": uniform(first * FIRST**2, first),
        "label.weight": uniform(latent, layout.classes, latent),
        "label.bias": uniform(latent, layout.classes),
    }
    for number, (inputs, outputs) in enumerate(layout.blocks, 1):
        out[f"block{number}.weight"] = uniform(9 * inputs, outputs, inputs, 3, 3)
        out[f"block{number}.scale"] = np.ones(outputs)
        out[f"block{number}.shift"] = np.zeros(outputs)
    return out


class Generators:
    """M independent generators of K images and their labels, from the results `drawn` of `draw`.

    Both first layers are linear in fixed vectors z. With K = 1 their matrices W are not kept:
    RMSprop's mean square of ∂ℓ/∂W = ∂ℓ/∂y zᵀ is z² times that of y = W z, so W z moves as y does
    by itself, at Σ|z| times the rate. This holds to first order in RMSprop's ε, relative to the
    gradient, and saves three quarters of the values at side 32.
    """

    def __init__(
        self,
        layout: Layout,
        drawn: Iterable[Mapping[str, np.ndarray]],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._layout = layout
        # The first layers of large images are larger than all kept values: none waits for others.
        members = [
            {name: torch.from_numpy(_arranged(name, one)).to(device, dtype) for name in one}
            for one in drawn
        ]
        self._parameters = {
            name: torch.stack([member[name] for member in members]).requires_grad_()
            for name in members[0]
            if name != "latents"
        }
        self._latents = torch.stack([member["latents"] for member in members])
        self._folded = self._latents.shape[1] == 1
        self._states = {name: fresh_state(value) for name, value in self._parameters.items()}

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return images (M, K, C, H, W) in 0..1 and logits (M, K, classes), with a graph."""
        given = self._parameters
        x = self._linear("first").unflatten(2, (-1, FIRST, FIRST)).transpose(1, 2)
        x = functional.glu(x + given["first.bias"][..., None, None, None], 1)
        for number in range(1, len(self._layout.blocks) + 1):
            scale, shift = (given[f"block{number}.{kind}"] for kind in ("scale", "shift"))
            z = _upsampled(x, given[f"block{number}.weight"])
            rows = z.view(1, scale.numel(), -1)
            z = functional.batch_norm(
                rows, None, None, scale.flatten(), shift.flatten(), training=True
            ).view(z.shape)
            x = functional.glu(z, 1)
        logits = self._linear("label") + given["label.bias"].unsqueeze(1)
        return torch.sigmoid(x).transpose(1, 2), logits

    def _linear(self, name: str) -> Tensor:
        """Output of a first layer without its bias (M, K, n)."""
        weight = self._parameters[f"{name}.weight"]
        return weight if self._folded else self._latents @ weight

    @torch.no_grad()
    def step(self, rate: float, momentum: float) -> None:
        """Take one step of RMSprop along the parameters' gradients and clear them."""
        for name, value in self._parameters.items():
            if value.grad is None:
                continue  # known labels
            given = (value, value.grad, self._states[name], rate, momentum)
            if self._folded and name in ("first.weight", "label.weight"):
                _folded_step(*given, self._latents)
            else:
                rmsprop_step(*given)
            value.grad = None

    def state(self) -> dict[str, Tensor]:
        """Tensors from which `restore` goes on."""
        out = {f"{name}.value": value for name, value in self._parameters.items()}
        for name, (square, moving) in self._states.items():
            out |= {f"{name}.square": square, f"{name}.moving": moving}
        return out | {"latents": self._latents}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state` was asked for."""
        for name in self._parameters:
            self._parameters[name] = state[f"{name}.value"].requires_grad_()
            self._states[name] = (state[f"{name}.square"], state[f"{name}.moving"])
        self._latents = state["latents"]

    def keep(self, rows: Tensor) -> None:
        """Drop the other members."""
        for name, value in self._parameters.items():
            self._parameters[name] = value.detach()[rows].requires_grad_()
        self._latents = self._latents[rows]
        states = self._states
        self._states = {name: (one[rows], two[rows]) for name, (one, two) in states.items()}


class Fitted:
    """γ and β of a lock (M, n), fitted beside the generators."""

    def __init__(self, value: Tensor) -> None:
        self.value = value.clone()
        self._state = fresh_state(value)

    def step(self, slope: Tensor, rate: float, momentum: float) -> None:
        """Take one step of RMSprop along a gradient."""
        rmsprop_step(self.value, slope, self._state, rate, momentum)

    def state(self) -> dict[str, Tensor]:
        """Tensors from which `restore` goes on."""
        square, moving = self._state
        return {"value": self.value, "square": square, "moving": moving}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state` was asked for."""
        self.value, self._state = state["value"], (state["square"], state["moving"])

    def keep(self, rows: Tensor) -> None:
        """Drop the other members."""
        self.value, (one, two) = self.value[rows], self._state
        self._state = one[rows], two[rows]


def at_once(layout: Layout, dtype: torch.dtype) -> int:
    """Number of single-image generators to compute at once on a CPU."""
    # Filters (most of the parameters), their gradients and two running means.
    numbers = 4 * sum(9 * inputs * outputs for inputs, outputs in layout.blocks)
    return max(1, MEMORY // (numbers * dtype.itemsize))


def _arranged(name: str, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
    """Convert a parameter of `draw` to the layout of `Generators`: see `_linear`, `_upsampled`."""
    value, latents = drawn[name], drawn["latents"]
    if name.startswith("block") and name.endswith("weight"):
        return value.transpose(2, 3, 0, 1).reshape(-1, value.shape[1])
    if name not in ("first.weight", "label.weight"):
        return value
    matrix = value.T if name == "label.weight" else value.reshape(len(value), -1)
    return latents @ matrix if len(latents) == 1 else matrix


def _upsampled(x: Tensor, weight: Tensor) -> Tensor:
    """3x3 convolution, padded by 1, of images (M, C, K, h, w) upsampled to twice their side.

    Each of the nine taps (M, 9·O, C) is applied to the small image, and the results are summed
    where the large one meets them: a quarter of the products, and no window is written out.
    Measured on one thread: two to nine times as fast as grouped convolutions of upsampled images.
    """
    members, _, batch, height, width = x.shape
    found = torch.bmm(weight, x.flatten(2))
    found = _Spread.apply(found.view(members, 3, 3, -1, height, width))
    return found.view(members, -1, batch, 2 * height, 2 * width)


class _Spread(torch.autograd.Function):
    """Sum (M, O, 2h, 2w) over taps (r, c) of a 3x3 kernel of values (M, 3, 3, O, h, w).

    A tap's row r meets row i of the small image at row 2 i + 1 − r and the next of the large one:
    so even rows get taps 1 and 2 of row i and tap 0 of the row above; odd rows get taps 0 and 1,
    and tap 2 of the row below. Columns likewise.
    """

    @staticmethod
    def forward(_: Any, z: Tensor) -> Tensor:
        """Compute the sum, rows first."""
        rows = z.new_empty(*z.shape[:1], *z.shape[2:5], 2, z.shape[5])
        above, middle, below = z.unbind(1)
        torch.add(middle, below, out=rows[..., 0, :])
        torch.add(middle, above, out=rows[..., 1, :])
        rows[..., 1:, 0, :] += above[..., :-1, :]
        rows[..., :-1, 1, :] += below[..., 1:, :]
        rows = rows.flatten(3, 4)
        out = rows.new_empty(*rows.shape[:1], *rows.shape[2:], 2)
        left, middle, right = rows.unbind(1)
        torch.add(middle, right, out=out[..., 0])
        torch.add(middle, left, out=out[..., 1])
        out[..., 1:, 0] += left[..., :-1]
        out[..., :-1, 1] += right[..., 1:]
        return out.flatten(3)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        """Adjoint: each tap (M, 3, 3, O, h, w) receives the gradient of its output."""
        members, filters, height, width = gradient.shape
        even, odd = gradient.unflatten(3, (-1, 2)).unbind(4)
        rows = gradient.new_empty(members, 3, filters, height, width // 2)
        left, middle, right = rows.unbind(1)
        torch.add(even, odd, out=middle)
        left.copy_(odd)[..., :-1] += even[..., 1:]
        right.copy_(even)[..., 1:] += odd[..., :-1]
        even, odd = rows.unflatten(3, (-1, 2)).unbind(4)
        out = rows.new_empty(members, 3, *even.shape[1:])
        above, middle, below = out.unbind(1)
        torch.add(even, odd, out=middle)
        above.copy_(odd)[..., :-1, :] += even[..., 1:, :]
        below.copy_(even)[..., 1:, :] += odd[..., :-1, :]
        return out


def fresh_state(value: Tensor) -> State:
    """Return the state of a parameter before its first step."""
    return torch.zeros_like(value), torch.zeros_like(value)


def rmsprop_step(x: Tensor, slope: Tensor, state: State, rate: float, momentum: float) -> None:
    """Take one step in place, as torch.optim.RMSprop, whose import takes 2.5 s of every job."""
    flat = [value.view(-1) for value in (x, slope.contiguous(), *state)]
    size = PART if x.device.type == "cpu" else len(flat[0])
    for first in range(0, len(flat[0]), size):
        part, g, square, moving = (value[first : first + size] for value in flat)
        square.mul_(DECAY).addcmul_(g, g, value=1.0 - DECAY)
        moving.mul_(momentum).addcdiv_(g, square.sqrt().add_(EPSILON))
        part.add_(moving, alpha=-rate)


def _folded_step(
    x: Tensor, slope: Tensor, state: State, rate: float, momentum: float, latents: Tensor
) -> None:
    """Apply `rmsprop_step` of W to y = W z (M, 1, n), z of `latents` (M, 1, L)."""
    reach = latents.abs().sum(2, keepdim=True)
    square, moving = state
    square.mul_(DECAY).addcmul_(slope, slope, value=1.0 - DECAY)
    # Σ z² / (|z| r + ε) = Σ|z| / (r + L ε / Σ|z|) + O(ε²)
    root = square.sqrt().add_(EPSILON * latents.shape[2] / reach)
    moving.mul_(momentum).addcdiv_(slope, root)
    x.sub_(moving * (rate * reach))
