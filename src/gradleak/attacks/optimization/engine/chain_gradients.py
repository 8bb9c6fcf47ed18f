"""Gradients of many networks for many images at once, differentiable in the images.

The backward pass is written out, δ_l = a'(z_l) ∘ W_{l+1}ᵀ δ_{l+1} and ∂ℓ/∂W_l = δ_l x_lᵀ (R-GAP
eq. 6 to 8), so the derivative of a gradient distance costs one ordinary backward pass instead of
double backpropagation. Convolutions are products with unfolded images: measured on one thread,
at least as fast as grouped convolutions for every layer of CNN6 and LeNet.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gradleak.attacks.base import Arrays
from gradleak.attacks.optimization.engine import im2col
from gradleak.attacks.optimization.engine.output import output_gradient
from gradleak.errors import ConfigError
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvLayer, Layer
from gradleak.models.losses import LOSSES

# Limit in bytes of windows and gradients computed at once on a CPU.
CACHE = 8 * 2**20


def stack(members: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Stack arrays as ``{parameter: array (M, ...)}``, or the one array that all members share."""
    first, others = members[0], [member for member in members if member is not members[0]]
    return {
        name: value
        if all(np.array_equal(other[name], value, equal_nan=True) for other in others)
        else np.stack([member[name] for member in members])
        for name, value in first.items()
    }


class Placed:
    """Base of gradients in one precision on one device, for the parameters in `names`."""

    device: torch.device
    dtype: torch.dtype
    names: tuple[str, ...]
    chain: Chain
    _weights: dict[str, Tensor]

    @property
    def is_kinked(self) -> bool:
        """True if an activation has a kink, where gradients jump."""
        return self.chain.is_kinked

    def _with(self, weights: dict[str, Tensor]) -> Self:
        """Return the same network under other weights."""
        out = copy(self)
        out._weights = weights
        return out

    def tensor(self, value: np.ndarray | Tensor) -> Tensor:
        """Return `value` on this object's device and in its precision."""
        return torch.as_tensor(value).to(device=self.device, dtype=self.dtype)

    def targets(self, members: Sequence[Arrays]) -> list[Tensor]:
        """Stack shared gradients of M members in the order of this object's, (M, ...) each."""
        return [self.tensor(np.stack([member[name] for member in members])) for name in self.names]


def check_known(what: str, value: str, known: Sequence[str]) -> None:
    """Raise `ConfigError` for a value that is not among those known."""
    if value not in known:
        raise ConfigError(f"{what}: '{value}' is not known; choose one of {', '.join(known)}.")


@dataclass(frozen=True)
class Walk:
    """Values of a forward and backward pass through a chain; lists have one entry per layer."""

    # Input of the linear part, (M, n, q); in a convolution windows, q = P·K, else q = K.
    inputs: list[Tensor]
    outputs: list[Tensor]  # a(z), (M, O, Ph, Pw, K) or (M, K, m)
    derivatives: list[Tensor | None]  # a'(z), None where it is 1
    back: list[Tensor]  # dℓ/da(z), shaped as `outputs`
    left: list[Tensor]  # δ = dℓ/dz, (M, O, q)


class ChainGradients(Placed):
    """Gradients of a chain's loss with respect to all parameters, for M members at once.

    A member is an image, or K images whose gradients are averaged, with individual weights or
    weights shared by all. Members are independent. `weights` is ``{parameter: array}`` of the
    parameter's shape if members share it, else (M, ...); `loss` is one of
    `gradleak.models.losses.LOSSES`.
    """

    def __init__(
        self,
        chain: Chain,
        weights: Mapping[str, np.ndarray | Tensor],
        loss: str,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_known("loss", loss, LOSSES)
        self.chain, self.loss = chain, loss
        self.device, self.dtype = torch.device(device), dtype
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._weights: dict[str, Tensor] = {}
        for layer in chain.layers:
            shape = layer.parts[0].size if isinstance(layer, ConvLayer) else layer.size
            self.shapes[f"{layer.name}.weight"] = shape
            if layer.bias:
                self.shapes[f"{layer.name}.bias"] = shape[:1]
        self.names = tuple(self.shapes)
        for name, shape in self.shapes.items():
            value = self.tensor(weights[name])
            own = value.ndim > len(shape)
            # (M or 1, outputs, ...): each filter is a row.
            self._weights[name] = value.reshape(value.shape[0] if own else 1, shape[0], -1)

    def select(self, index: Tensor | slice) -> ChainGradients:
        """Select members `index`; a slice copies nothing."""
        weights = self._weights.items()
        return self._with({k: v if v.shape[0] == 1 else v[index] for k, v in weights})

    def at_once(self, batch: int) -> int:
        """Number of members of `batch` images to compute at once: as many as fit the CPU's cache.

        Measured on one thread: members beyond the cache cost up to four times as much each, because
        of page faults. An accelerator takes all.
        """
        if self.device.type != "cpu":
            return sys.maxsize
        numbers = 2 * sum(prod(shape) for shape in self.shapes.values() if len(shape) > 1)
        for layer in self.chain.convolutions:
            numbers += batch * prod(layer.parts[0].size[1:]) * layer.shape.positions
        return max(1, CACHE // (numbers * self.dtype.itemsize))

    def __call__(self, images: Tensor, labels: Tensor, scale: Tensor | None = None) -> list[Tensor]:
        """Return gradients (M, ...) of every parameter in the order of `names`, mean over K.

        Differentiable in `images` (M, K, C, H, W) and in dummy logits, also by `torch.func`.
        `labels` are integers (M, K): classes, or −1 and 1 for a margin loss. Or dummy logits v
        (M, K, outputs): the label is then softmax(v), or for a margin loss 1 with probability
        sigmoid(v) and −1 otherwise, and the loss is the expected one. `scale` (M,) multiplies each
        member's loss: the squared gradients of saturated networks underflow float32.
        """
        found = self.walk(images, labels, scale)
        out = []
        for layer, delta, x in zip(self.chain.layers, found.left, found.inputs, strict=True):
            out.append((delta @ x.mT).reshape(-1, *self.shapes[f"{layer.name}.weight"]))
            if layer.bias:
                out.append(delta.sum(2))
        return out

    def walk(self, images: Tensor, labels: Tensor, scale: Tensor | None = None) -> Walk:
        """Run a forward and a backward pass; see `__call__` for the arguments."""
        inputs, linear, outputs = self._forward(images)
        layers = self.chain.layers
        derivatives = [
            derivative_of(layer.activation, z, value)
            for layer, z, value in zip(layers, linear, outputs, strict=True)
        ]
        gradient = output_gradient(self.loss, outputs[-1], labels, scale)
        entered: list[Tensor] = []
        left: list[Tensor] = []
        waiting: dict[int, Tensor] = {}
        for number in reversed(range(len(layers))):
            layer, derivative = layers[number], derivatives[number]
            if number in waiting:
                gradient = gradient + waiting.pop(number)
            if isinstance(layer, ConvLayer):
                gradient = im2col.unpooled(gradient, outputs[number], layer.pool)
            entered.append(gradient)
            delta = gradient if derivative is None else gradient * derivative
            keep_skipped(waiting, number, layer, delta)
            left.append(im2col.to_columns(delta) if isinstance(layer, ConvLayer) else delta.mT)
            if number:
                gradient = self.pulled(number, left[-1], images.shape[1])
        return Walk(inputs, outputs, derivatives, entered[::-1], left[::-1])

    def _forward(self, images: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Inputs (M, n, q), linear outputs and outputs of all layers."""
        x = images_last(images)
        entering, inputs, linear, outputs = [], [], [], []
        for layer in self.chain.layers:
            weight = self.weight(layer)
            bias = self._weights.get(f"{layer.name}.bias")
            if isinstance(layer, ConvLayer):
                entering.append(x)
                columns = im2col.unfold(x, layer)
                z = weight @ columns
                if bias is not None:
                    z = z + bias
                z = im2col.to_images(z, layer, images.shape[1])
                if layer.skip:
                    z = z + entering[-layer.skip]
                inputs.append(columns)
            else:
                x = as_rows(x)
                z = rows_times(x, weight.mT)
                if bias is not None:
                    z = z + bias.mT
                inputs.append(x.mT)
            linear.append(z)
            x = activate(layer.activation, z)
            outputs.append(x)
            if isinstance(layer, ConvLayer):
                x = im2col.pooled(x, layer.pool)
        return inputs, linear, outputs

    def weight(self, layer: Layer) -> Tensor:
        """Weights (M or 1, O, n) of a layer, a filter in each row."""
        return self._weights[f"{layer.name}.weight"]

    def pulled(
        self,
        number: int,
        columns: Tensor,
        batch: int,
        direct: Tensor | None = None,
        *,
        fused: bool = True,
    ) -> Tensor:
        """Return Wᵀ `columns` (M, O, q) + `direct` (M, n, q), shaped as the layer's input.

        See `plus_product` for `fused`.
        """
        layer = self.chain.layers[number]
        weight = self.weight(layer)
        if isinstance(layer, ConvLayer):
            return im2col.fold(plus_product(direct, weight.mT, columns, fused=fused), layer, batch)
        rows = rows_times(columns.mT, weight, fused=fused)
        return self.entering(number, rows if direct is None else rows + direct.mT)

    def entering(self, number: int, values: Tensor) -> Tensor:
        """Reshape the input (M, K, n) of fully connected layer `number` to the output before it.

        Before layer 0 that is the images (M, C, H, W, K).
        """
        previous = self.chain.layers[number - 1] if number else None
        if isinstance(previous, ConvLayer):
            return values.mT.unflatten(1, (previous.shape.filters, *previous.grid))
        return values if number else values.mT.unflatten(1, self.chain.input)


def images_last(images: Tensor) -> Tensor:
    """Images (M, K, C, H, W) as (M, C, H, W, K)."""
    return images.permute(0, 2, 3, 4, 1).contiguous()


def as_rows(x: Tensor) -> Tensor:
    """Reshape the input of a fully connected layer, (M, C, H, W, K) or (M, K, n), to (M, K, n)."""
    return x.flatten(1, 3).mT if x.ndim == 5 else x


def keep_skipped(waiting: dict[int, Tensor], number: int, layer: Layer, delta: Tensor) -> None:
    """Keep δ of layer `number` for the layer whose output its skip, if any, adds too."""
    if isinstance(layer, ConvLayer) and layer.skip:
        start = number - layer.skip
        waiting[start] = waiting[start] + delta if start in waiting else delta


def plus_product(base: Tensor | None, a: Tensor, b: Tensor, *, fused: bool) -> Tensor:
    """Return `base` (M, n, q) + a b; `fused` is faster, and overwrites `base`."""
    if base is None or not fused:
        return a @ b if base is None else base + a @ b
    return base.baddbmm_(a.expand(len(base), -1, -1), b)


def rows_times(rows: Tensor, weight: Tensor, *, fused: bool = True) -> Tensor:
    """Multiply rows (M, K, a) by weights (M or 1, a, b); shared ones in one product if `fused`."""
    return rows @ (weight[0] if fused and weight.shape[0] == 1 else weight)


def activate(activation: Activation, z: Tensor) -> Tensor:
    """Return a(z), as `Activation.forward` in PyTorch."""
    if activation.name == "leaky_relu":
        return functional.leaky_relu(z, activation.slope)
    if activation.name == "identity":
        return z
    functions = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu}
    return functions[activation.name](z)


def derivative_of(activation: Activation, z: Tensor, value: Tensor) -> Tensor | None:
    """Return a'(z), as `Activation.derivative`, in PyTorch, with `value` = a(z); None for 1."""
    if activation.name == "identity":
        return None
    if activation.name == "tanh":
        return 1.0 - value.square()
    if activation.name == "sigmoid":
        return value * (1.0 - value)
    positive = (z > 0).to(z.dtype)
    if activation.name == "relu":
        return positive
    return positive * (1.0 - activation.slope) + activation.slope


def times(derivative: Tensor | None, value: Tensor) -> Tensor:
    """Return a'(z) ∘ value, where None stands for 1."""
    return value if derivative is None else derivative * value


def second_of(activation: Activation, value: Tensor, derivative: Tensor | None) -> Tensor:
    """Return a''(z) of Tanh or Sigmoid from a(z) and a'(z)."""
    assert derivative is not None
    if activation.name == "tanh":
        return -2.0 * value * derivative
    return (1.0 - 2.0 * value) * derivative
