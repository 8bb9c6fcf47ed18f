"""Gradients of many networks for many images at once, differentiable in the images.

The backward pass is written out, δ_l = a'(z_l) ∘ W_{l+1}ᵀ δ_{l+1} and ∂ℓ/∂W_l = δ_l x_lᵀ (R-GAP
eq. 6 to 8), so the derivative of a gradient distance costs one ordinary backward pass instead of
double backpropagation. Convolutions are products with unfolded images: measured on one thread,
at least as fast as grouped convolutions for every layer of CNN6 and LeNet.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gradleak.attacks.optimization.engine.device_mixin import Arrays, Placed
from gradleak.attacks.optimization.engine.im2col import (
    fold,
    pooled,
    to_columns,
    to_images,
    unfold,
    unpooled,
)
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


def members_at_once(chain: Chain, batch: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of members to compute at once: as many as fit the processor's cache.

    Measured on one thread: members beyond the cache cost up to four times as much each, because
    of page faults. An accelerator takes all.
    """
    if device.type != "cpu":
        return sys.maxsize
    numbers = 0
    for layer in chain.layers:
        if isinstance(layer, ConvLayer):
            window = layer.shape.channels * layer.shape.kernel[0] * layer.shape.kernel[1]
            numbers += batch * window * layer.shape.positions
            numbers += 2 * window * layer.shape.filters
        else:
            numbers += 2 * layer.inputs * layer.outputs
    return max(1, CACHE // (numbers * dtype.itemsize))


@dataclass(frozen=True)
class Walk:
    """Values of a forward and backward pass through a chain; lists have one entry per layer."""

    # Input of the linear part, (M, n, q); in a convolution windows, q = K·P.
    inputs: list[Tensor]
    outputs: list[Tensor]  # a(z), (M, K, O, Ph, Pw) or (M, K, m)
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
        if loss not in LOSSES:
            raise ConfigError(f"loss: '{loss}' is not known; choose one of {', '.join(LOSSES)}.")
        self.chain, self.loss = chain, loss
        self.device, self.dtype = torch.device(device), dtype
        self.names: tuple[str, ...] = ()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._weights: dict[str, Tensor] = {}
        for layer in chain.layers:
            for name, shape in _parameters(layer):
                self.names += (name,)
                self.shapes[name] = shape
                value = self.tensor(weights[name])
                own = value.ndim > len(shape)
                # (M or 1, outputs, ...): each filter is a row.
                self._weights[name] = value.reshape(value.shape[0] if own else 1, shape[0], -1)

    def select(self, index: Tensor | slice) -> ChainGradients:
        """Select members `index`; a slice copies nothing."""
        weights = self._weights.items()
        return self._with({k: v if v.shape[0] == 1 else v[index] for k, v in weights})

    def __call__(self, images: Tensor, labels: Tensor, scale: Tensor | None = None) -> list[Tensor]:
        """Return gradients (M, ...) of every parameter in the order of `names`, mean over K.

        Differentiable in `images` (M, K, C, H, W) and in dummy logits, also by `torch.func`.
        `labels` are integers (M, K): classes, or −1 and 1 for a margin loss. Or dummy logits v
        (M, K, outputs): the label is then softmax(v), or for a margin loss 1 with probability
        sigmoid(v) and −1 otherwise, and the loss is the expected one. `scale` (M,) multiplies each
        member's loss: the squared gradients of saturated networks underflow float32.
        """
        factors = self.factors(images, labels, scale)
        members = images.shape[0]
        out = []
        for name in self.names:
            layer, kind = name.split(".")
            left, right = factors[layer]
            value = left.sum(2) if kind == "bias" else left @ right.mT
            out.append(value.reshape(members, *self.shapes[name]))
        return out

    def factors(
        self, images: Tensor, labels: Tensor, scale: Tensor | None = None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return ``{layer: (δ (M, O, q), inputs (M, n, q))}``, see `Walk`: ∂ℓ/∂W = δ inputsᵀ."""
        found = self.walk(images, labels, scale)
        names = [layer.name for layer in self.chain.layers]
        return dict(zip(names, zip(found.left, found.inputs, strict=True), strict=True))

    def walk(self, images: Tensor, labels: Tensor, scale: Tensor | None = None) -> Walk:
        """Run a forward and a backward pass; see `__call__` for the arguments."""
        inputs, linear, outputs = self._forward(images)
        layers = self.chain.layers
        derivatives = [
            derivative_of(layer.activation, z, value)
            for layer, z, value in zip(layers, linear, outputs, strict=True)
        ]
        gradient = self.output_gradient(outputs[-1], labels, scale)
        entered: list[Tensor] = []
        left: list[Tensor] = []
        waiting: dict[int, Tensor] = {}
        for number in reversed(range(len(layers))):
            layer, derivative = layers[number], derivatives[number]
            if number in waiting:
                gradient = gradient + waiting.pop(number)
            if isinstance(layer, ConvLayer):
                gradient = unpooled(gradient, outputs[number], layer.pool)
            entered.append(gradient)
            delta = gradient if derivative is None else gradient * derivative
            if isinstance(layer, ConvLayer) and layer.skip:
                start = number - layer.skip
                # The output of layer `start` enters here too; kept until that layer's turn.
                waiting[start] = waiting[start] + delta if start in waiting else delta
            left.append(to_columns(delta) if isinstance(layer, ConvLayer) else delta.mT)
            if number:
                gradient = self._transposed(number, left[-1], images.shape[1])
        return Walk(inputs, outputs, derivatives, entered[::-1], left[::-1])

    def _forward(self, images: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Inputs (M, n, q), linear outputs and outputs of all layers."""
        x = images
        entering, inputs, linear, outputs = [], [], [], []
        for layer in self.chain.layers:
            weight = self.weight(layer)
            bias = self._weights.get(f"{layer.name}.bias")
            if isinstance(layer, ConvLayer):
                entering.append(x)
                columns = unfold(x, layer)
                z = weight @ columns
                if bias is not None:
                    z = z + bias
                z = to_images(z, layer, x.shape[1])
                if layer.skip:
                    z = z + entering[-layer.skip]
                inputs.append(columns)
            else:
                x = x.flatten(2)
                z = rows_times(x, weight.mT)
                if bias is not None:
                    z = z + bias.mT
                inputs.append(x.mT)
            linear.append(z)
            x = activate(layer.activation, z)
            outputs.append(x)
            if isinstance(layer, ConvLayer):
                x = pooled(x, layer.pool)
        return inputs, linear, outputs

    def weight(self, layer: Layer) -> Tensor:
        """Weights (M or 1, O, n) of a layer, a filter in each row."""
        return self._weights[f"{layer.name}.weight"]

    def _transposed(self, number: int, delta: Tensor, batch: int) -> Tensor:
        """Return Wᵀ δ: the gradient with respect to a layer's input, in that shape."""
        layer = self.chain.layers[number]
        weight = self.weight(layer)
        if isinstance(layer, ConvLayer):
            return fold(weight.mT @ delta, layer, batch)
        return self.entering(number, rows_times(delta.mT, weight))

    def entering(self, number: int, values: Tensor) -> Tensor:
        """Reshape the input (M, K, n) of fully connected layer `number` to the output before it."""
        previous = self.chain.layers[number - 1] if number else None
        if isinstance(previous, ConvLayer):
            return values.unflatten(2, (previous.shape.filters, *previous.grid))
        return values if number else values.unflatten(2, self.chain.input)

    def output_gradient(
        self, output: Tensor, labels: Tensor, scale: Tensor | None = None
    ) -> Tensor:
        """Return dℓ/d(output) (M, K, m), divided by K for the batch mean, times `scale`."""
        return output_gradient(self.loss, output, labels, scale)


def _parameters(layer: Layer) -> list[tuple[str, tuple[int, ...]]]:
    shape: tuple[int, ...]
    if isinstance(layer, ConvLayer):
        shape = (layer.shape.filters, layer.shape.channels, *layer.shape.kernel)
    else:
        shape = (layer.outputs, layer.inputs)
    biases = [(f"{layer.name}.bias", shape[:1])] if layer.bias else []
    return [(f"{layer.name}.weight", shape), *biases]


def rows_times(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows (M, K, a) by weights (M or 1, a, b); shared weights in one product."""
    return rows @ (weight[0] if weight.shape[0] == 1 else weight)


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
