"""Distance between gradients and its derivative in the images, written out without a graph."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients, rows_times
from gradleak.attacks.optimization.engine.im2col import (
    fold,
    pooled_at,
    to_columns,
    to_images,
    unfold,
    unpooled,
)
from gradleak.attacks.optimization.engine.output import output_bend
from gradleak.models.activations import Activation
from gradleak.models.chain import ConvLayer, Layer

# Activations whose a''(z) is 0 wherever it exists.
KINKED = ("relu", "leaky_relu", "identity")


class Descent:
    """Σ_l ||∂ℓ/∂W_l − target_l||² (DLG; R-GAP eq. 1) and its gradient, twice as fast as by a graph.

    With residuals r_l = ∂ℓ/∂W_l − target_l held fixed, ∇_x Σ ||r_l||² = 2 ∇_x d/dε ℓ(x; W + ε r):
    one forward pass with tangents ż_l = r_l x_l + W_l ẋ_l, and one backward (Pearlmutter 1994, with
    the roles of weights and images exchanged). `targets` are those of `ChainGradients.targets`,
    (M, ...); `scale` (M,) multiplies each member's loss.
    """

    def __init__(self, network: ChainGradients, targets: Sequence[Tensor], scale: Tensor) -> None:
        self._network, self._targets, self._scale = network, targets, scale
        self._layers = network.chain.layers

    @torch.no_grad()
    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return distances (M,), gradients in images (M, K, C, H, W) and dummy logits, if any."""
        network, batch = self._network, images.shape[1]
        walk = network.walk(images, labels, self._scale)
        residuals = self._residuals(walk.left, walk.inputs)
        value = torch.stack(
            [torch.linalg.vector_norm(r, dim=(1, 2)).square() for r in residuals.values()]
        ).sum(0)

        moved: list[Tensor] = []  # ẋ after each layer
        tangents: list[Tensor] = []  # ż of each layer
        for number, layer in enumerate(self._layers):
            z = residuals[f"{layer.name}.weight"] @ walk.inputs[number]
            if layer.bias:
                z = z + residuals[f"{layer.name}.bias"]
            before = moved[-1] if moved else None
            z = self._forward(layer, z, before, batch)
            if isinstance(layer, ConvLayer) and layer.skip and number >= layer.skip:
                z = z + moved[number - layer.skip]
            tangents.append(z)
            move = times(walk.derivatives[number], z)
            if isinstance(layer, ConvLayer):
                move = pooled_at(move, walk.outputs[number], layer.pool)
            moved.append(move)

        back, in_logits = output_bend(
            network.loss, walk.outputs[-1], labels, self._scale, moved[-1]
        )
        waiting: dict[int, Tensor] = {}
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            if number in waiting:
                back = back + waiting.pop(number)
            if isinstance(layer, ConvLayer):
                back = unpooled(back, walk.outputs[number], layer.pool)
            delta = times(walk.derivatives[number], back)
            if layer.activation.name not in KINKED:
                bend = second_of(layer.activation, walk.outputs[number], walk.derivatives[number])
                delta = delta + bend * tangents[number] * walk.back[number]
            if isinstance(layer, ConvLayer) and layer.skip:
                start = number - layer.skip
                waiting[start] = waiting[start] + delta if start in waiting else delta
            weight = residuals[f"{layer.name}.weight"]
            back = self._backward(number, delta, weight.mT @ walk.left[number], batch)
        if -1 in waiting:
            back = back + waiting[-1]
        return value, 2.0 * back, None if in_logits is None else 2.0 * in_logits

    def _residuals(self, left: Sequence[Tensor], inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Residuals r (M, O, n) of weights and (M, O, 1) of biases, by name."""
        targets, out = dict(zip(self._network.names, self._targets, strict=True)), {}
        for layer, delta, x in zip(self._layers, left, inputs, strict=True):
            rows = targets[f"{layer.name}.weight"].flatten(2)
            out[f"{layer.name}.weight"] = torch.baddbmm(rows, delta, x.mT, beta=-1)
            if layer.bias:
                offset = delta.sum(2) - targets[f"{layer.name}.bias"]
                out[f"{layer.name}.bias"] = offset.unsqueeze(2)
        return out

    def _forward(self, layer: Layer, z: Tensor, before: Tensor | None, batch: int) -> Tensor:
        """Return Z (M, O, q) + W ẋ, shaped as the layer's output; nothing moves before layer 0."""
        weight = self._network.weight(layer)
        if isinstance(layer, ConvLayer):
            if before is not None:
                z = torch.baddbmm(z, weight.expand(len(z), -1, -1), unfold(before, layer))
            return to_images(z, layer, batch)
        z = z.mT
        return z if before is None else z + rows_times(before.flatten(2), weight.mT)

    def _backward(self, number: int, delta: Tensor, known: Tensor, batch: int) -> Tensor:
        """Return `known` (M, n, q) + Wᵀ δ, shaped as the layer's input."""
        layer = self._layers[number]
        weight = self._network.weight(layer)
        if isinstance(layer, ConvLayer):
            wide = weight.mT.expand(len(delta), -1, -1)
            return fold(torch.baddbmm(known, wide, to_columns(delta)), layer, batch)
        found = known.mT + rows_times(delta, weight)
        return self._network.entering(number, found)


def times(derivative: Tensor | None, value: Tensor) -> Tensor:
    """Return a'(z) ∘ value, where None stands for 1."""
    return value if derivative is None else derivative * value


def second_of(activation: Activation, value: Tensor, derivative: Tensor | None) -> Tensor:
    """Return a''(z) of Tanh or Sigmoid from a(z) and a'(z)."""
    assert derivative is not None
    if activation.name == "tanh":
        return -2.0 * value * derivative
    return (1.0 - 2.0 * value) * derivative
