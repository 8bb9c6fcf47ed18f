"""Gradients of a chain to first order in the image: their Jacobian and its adjoint."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients
from gradleak.attacks.optimization.engine.double_backward import KINKED, second_of, times
from gradleak.attacks.optimization.engine.im2col import fold, to_columns, to_images, unfold
from gradleak.models.chain import ConvLayer


class Linearised:
    """g(x) = ∂ℓ/∂W for M members at x, and its Jacobian J, written out without a graph.

    Layer l gives g_l = δ_l x_lᵀ, so J v = δ̇_l x_lᵀ + δ_l ẋ_lᵀ with tangents ẋ of the forward pass
    and δ̇ of the backward pass; Jᵀ u runs both passes in reverse. At kinks J is that of the linear
    piece around x. `images`, `labels` and `scale` are as of `ChainGradients.__call__`, with known
    labels.

    `known` is ``{layer: δ (M, O, q)}`` for convolutions whose δ is known (scaled as the loss is):
    it is treated as constant, and so is the gradient it passes to the layers before. Only for
    chains without skips and without an open convolution behind a known one.
    """

    @torch.no_grad()
    def __init__(
        self,
        network: ChainGradients,
        images: Tensor,
        labels: Tensor,
        scale: Tensor,
        known: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.network, self.images, self.labels, self.scale = network, images, labels, scale
        self._layers = network.chain.layers
        walk = network.walk(images, labels, scale)
        self.inputs, self.derivatives = walk.inputs, walk.derivatives
        self.left, self._back = list(walk.left), list(walk.back)
        self._outputs = walk.outputs
        known = known or {}
        self.open = [layer.name not in known for layer in self._layers]
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            if not self.open[number]:
                self.left[number] = known[layer.name]
            elif not all(self.open[number:]):
                self._back[number] = self._pulled(number + 1, self.left[number + 1])
                delta = times(self.derivatives[number], self._back[number])
                self.left[number] = to_columns(delta)

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        """Return gradients (M, O, n) of weights and (M, O) of biases, in parameter order."""
        return self._by_name(
            [left @ right.mT for left, right in zip(self.left, self.inputs, strict=True)],
            [left.sum(2) for left in self.left],
        )

    @torch.no_grad()
    def forward(self, direction: Tensor) -> list[Tensor]:
        """Return J v (as `gradients`) for v of the images' shape."""
        batch = direction.shape[1]
        moved, entering = direction, []
        tangents, columns = [], []
        for number, layer in enumerate(self._layers):
            entering.append(moved)
            weight = self.network.weight(layer)
            if isinstance(layer, ConvLayer):
                columns.append(unfold(moved, layer))
                z = to_images(weight @ columns[-1], layer, batch)
                if layer.skip:
                    z = z + entering[-layer.skip]
            else:
                rows = moved.flatten(2)
                columns.append(rows.mT)
                z = rows @ weight.mT
            tangents.append(z)
            moved = times(self.derivatives[number], z)
        deltas = self._turned(tangents, self._curved(moved))
        weights, biases = [], []
        for left, right, inputs, delta in zip(self.left, columns, self.inputs, deltas, strict=True):
            value = left @ right.mT
            weights.append(value if delta is None else torch.baddbmm(value, delta, inputs.mT))
            biases.append(torch.zeros_like(left[:, :, 0]) if delta is None else delta.sum(2))
        return self._by_name(weights, biases)

    def _turned(self, tangents: Sequence[Tensor], back: Tensor) -> list[Tensor | None]:
        """Return δ̇ (M, O, q) of each layer, None for 0, from ż and the output's tangent."""
        out: list[Tensor | None] = []
        waiting: dict[int, Tensor] = {}
        turned: Tensor | None = back
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            if number in waiting:
                assert turned is not None
                turned = turned + waiting.pop(number)
            delta = self._local(number, tangents[number], turned)
            if not self.open[number] or delta is None:
                out.append(None)
                turned = None
                continue
            if isinstance(layer, ConvLayer) and layer.skip:
                start = number - layer.skip
                waiting[start] = waiting[start] + delta if start in waiting else delta
            columns = to_columns(delta) if isinstance(layer, ConvLayer) else delta.mT
            out.append(columns)
            if number:
                turned = self._pulled(number, columns)
        return out[::-1]

    def _local(self, number: int, tangent: Tensor, back: Tensor | None) -> Tensor | None:
        """Return a'(z) ∘ `back` + a''(z) ∘ `tangent` ∘ dℓ/da(z), None for 0."""
        straight = None if back is None else times(self.derivatives[number], back)
        activation = self._layers[number].activation
        if activation.name in KINKED or not self.open[number]:
            return straight
        second = second_of(activation, self._outputs[number], self.derivatives[number])
        bent = second * tangent * self._back[number]
        return bent if straight is None else straight + bent

    @torch.no_grad()
    def adjoint(self, duals: Sequence[Tensor]) -> Tensor:
        """Return Jᵀ u of the images' shape for u shaped as `gradients`."""
        by_name = dict(zip(self.network.names, duals, strict=True))
        batch = self.images.shape[1]
        raised: list[Tensor | None] = []  # factor of each δ̇
        passed: list[Tensor | None] = []  # factor of each tangent of dℓ/da(z)
        for number, layer in enumerate(self._layers):
            if not self.open[number]:
                raised.append(None)
                passed.append(None)
                continue
            before = passed[-1] if passed else None
            z = by_name[f"{layer.name}.weight"] @ self.inputs[number]
            if layer.bias:
                z = z + by_name[f"{layer.name}.bias"].unsqueeze(2)
            weight = self.network.weight(layer)
            if isinstance(layer, ConvLayer):
                if before is not None:
                    z = z + weight @ unfold(before, layer)
                z = to_images(z, layer, batch)
                # The input of layer 0 has no δ, so a skip from there adds nothing.
                if layer.skip and number >= layer.skip:
                    start = passed[number - layer.skip]
                    assert start is not None
                    z = z + start
            else:
                z = z.mT if before is None else z.mT + before.flatten(2) @ weight.mT
            raised.append(z)
            passed.append(times(self.derivatives[number], z))
        assert passed[-1] is not None
        return self._lowered(raised, self._curved(passed[-1]), by_name)

    def _lowered(
        self, raised: Sequence[Tensor | None], back: Tensor, by_name: Mapping[str, Tensor]
    ) -> Tensor:
        """Second pass of `adjoint`: factor of the images."""
        waiting: dict[int, Tensor] = {}
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            if number in waiting:
                back = back + waiting.pop(number)
            derivative, up = self.derivatives[number], raised[number]
            z = times(derivative, back)
            if up is not None and layer.activation.name not in KINKED:
                second = second_of(layer.activation, self._outputs[number], derivative)
                z = z + second * up * self._back[number]
            if isinstance(layer, ConvLayer) and layer.skip:
                start = number - layer.skip
                waiting[start] = waiting[start] + z if start in waiting else z
            columns = to_columns(z) if isinstance(layer, ConvLayer) else z.mT
            direct = by_name[f"{layer.name}.weight"].mT @ self.left[number]
            back = self._pulled(number, columns, direct)
        return back + waiting[-1] if -1 in waiting else back

    def _pulled(self, number: int, columns: Tensor, direct: Tensor | None = None) -> Tensor:
        """Return Wᵀ `columns` (M, O, q) + `direct` (M, n, q), shaped as the layer's input."""
        layer = self._layers[number]
        weight = self.network.weight(layer)
        batch = self.images.shape[1]
        if isinstance(layer, ConvLayer):
            found = weight.mT @ columns
            return fold(found if direct is None else found + direct, layer, batch)
        rows = columns.mT @ weight
        return self.network.entering(number, rows if direct is None else rows + direct.mT)

    def _curved(self, moved: Tensor) -> Tensor:
        """Return ∂²ℓ/∂output² times `moved` (M, K, m)."""
        with torch.enable_grad():
            output = self._outputs[-1].detach().requires_grad_()
            slope = self.network.output_gradient(output, self.labels, self.scale)
            # The hinge loss has no curvature, and so no graph.
            inner = (slope * moved).sum() + 0.0 * output.sum()
            return torch.autograd.grad(inner, output)[0]

    def _by_name(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[Tensor]:
        each = zip(self._layers, weights, biases, strict=True)
        return [part for layer, *both in each for part in both[: 1 + layer.bias]]
