"""Gradients of a chain to first order in the image, and of their distance to others, by hand."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.optimization.engine import im2col
from gradleak.attacks.optimization.engine.chain_gradients import (
    ChainGradients,
    as_rows,
    images_last,
    keep_skipped,
    plus_product,
    rows_times,
    second_of,
    times,
)
from gradleak.attacks.optimization.engine.distances import Distance
from gradleak.attacks.optimization.engine.output import output_bend
from gradleak.models.chain import ConvLayer, Layer


class Linearised:
    """g(x) = ∂ℓ/∂W for M members at x, and its Jacobian J, written out without a graph.

    Layer l gives g_l = δ_l x_lᵀ, so J v = δ̇_l x_lᵀ + δ_l ẋ_lᵀ with tangents ẋ of the forward pass
    and δ̇ of the backward pass; Jᵀ u runs both passes in reverse. At kinks J is that of the linear
    piece around x. `images`, `labels` and `scale` are as of `ChainGradients.__call__`; `forward`
    and `adjoint` want known labels, and no pools.

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
            if not self.open[number]:
                self.left[number] = known[self._layers[number].name]
            elif not all(self.open[number:]):
                self._back[number] = self._pulled(number + 1, self.left[number + 1])
                delta = times(self.derivatives[number], self._back[number])
                self.left[number] = im2col.to_columns(delta)

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
        moved, entering = images_last(direction), []
        tangents, columns = [], []
        for number, layer in enumerate(self._layers):
            entering.append(moved)
            weight = self.network.weight(layer)
            if isinstance(layer, ConvLayer):
                columns.append(im2col.unfold(moved, layer))
                z = im2col.to_images(weight @ columns[-1], layer, direction.shape[1])
                if layer.skip:
                    z = z + entering[-layer.skip]
            else:
                rows = as_rows(moved)
                columns.append(rows.mT)
                z = rows @ weight.mT
            tangents.append(z)
            moved = times(self.derivatives[number], z)
        back, _ = self._bend(moved)
        weights, biases = [], []
        every = zip(self.left, columns, self.inputs, self._turned(tangents, back), strict=True)
        for left, right, inputs, delta in every:
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
            delta: Tensor | None = None
            if turned is not None:
                turned = turned + waiting.pop(number) if number in waiting else turned
                delta = times(self.derivatives[number], turned)
            turned = None
            if self.open[number] and not layer.activation.is_homogeneous:
                bent = self._bent(number, tangents[number])
                delta = bent if delta is None else delta + bent
            if not self.open[number] or delta is None:
                out.append(None)
                continue
            keep_skipped(waiting, number, layer, delta)
            columns = im2col.to_columns(delta) if isinstance(layer, ConvLayer) else delta.mT
            out.append(columns)
            if number:
                turned = self._pulled(number, columns)
        return out[::-1]

    def _bent(self, number: int, tangent: Tensor) -> Tensor:
        """Return a''(z) ∘ `tangent` ∘ dℓ/da(z)."""
        known = self._outputs[number], self.derivatives[number]
        return second_of(self._layers[number].activation, *known) * tangent * self._back[number]

    @torch.no_grad()
    def adjoint(self, duals: Sequence[Tensor]) -> Tensor:
        """Return Jᵀ u of the images' shape for u shaped as `gradients`."""
        wide = (u if u.ndim == 3 else u.unsqueeze(2) for u in duals)
        return self.pull_back(dict(zip(self.network.names, wide, strict=True)))[0]

    def pull_back(
        self, duals: Mapping[str, Tensor], *, fused: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return `adjoint` of duals (M, O, n) by name, also in dummy logits, if any.

        See `gradleak.attacks.optimization.engine.chain_gradients.plus_product` for `fused`.
        """
        raised: dict[int, Tensor] = {}  # factor of each δ̇
        passed: dict[int, Tensor] = {}  # factor of each tangent of dℓ/da(z)
        for number, layer in enumerate(self._layers):
            if not self.open[number]:
                continue
            z = duals[f"{layer.name}.weight"] @ self.inputs[number]
            if layer.bias:
                z = z + duals[f"{layer.name}.bias"]
            z = self._pushed(layer, z, passed.get(number - 1), fused=fused)
            # The input of layer 0 has no δ, so a skip from there adds nothing.
            if isinstance(layer, ConvLayer) and layer.skip and number >= layer.skip:
                z = z + passed[number - layer.skip]
            raised[number] = z
            z = times(self.derivatives[number], z)
            if isinstance(layer, ConvLayer):
                z = im2col.pooled_at(z, self._outputs[number], layer.pool)
            passed[number] = z
        back, in_logits = self._bend(passed[len(self._layers) - 1])
        waiting: dict[int, Tensor] = {}
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            if number in waiting:
                back = back + waiting.pop(number)
            if isinstance(layer, ConvLayer):
                back = im2col.unpooled(back, self._outputs[number], layer.pool)
            z = times(self.derivatives[number], back)
            if number in raised and not layer.activation.is_homogeneous:
                z = z + self._bent(number, raised[number])
            keep_skipped(waiting, number, layer, z)
            columns = im2col.to_columns(z) if isinstance(layer, ConvLayer) else z.mT
            direct = duals[f"{layer.name}.weight"].mT @ self.left[number]
            back = self._pulled(number, columns, direct, fused=fused)
        back = back + waiting[-1] if -1 in waiting else back
        return back.permute(0, 4, 1, 2, 3), in_logits

    def _pushed(self, layer: Layer, z: Tensor, before: Tensor | None, *, fused: bool) -> Tensor:
        """Return `z` (M, O, q) + W `before`, shaped as the layer's output."""
        weight = self.network.weight(layer)
        if isinstance(layer, ConvLayer):
            if before is not None:
                z = plus_product(z, weight, im2col.unfold(before, layer), fused=fused)
            return im2col.to_images(z, layer, self.images.shape[1])
        z = z.mT
        return z if before is None else z + rows_times(as_rows(before), weight.mT, fused=fused)

    def _pulled(
        self, number: int, columns: Tensor, direct: Tensor | None = None, *, fused: bool = False
    ) -> Tensor:
        return self.network.pulled(number, columns, self.images.shape[1], direct, fused=fused)

    def _bend(self, moved: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return ∂²ℓ/∂output² times `moved` (M, K, m), and its like for dummy logits, if any."""
        return output_bend(self.network.loss, self._outputs[-1], self.labels, self.scale, moved)

    def _by_name(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[Tensor]:
        each = zip(self._layers, weights, biases, strict=True)
        return [part for layer, *both in each for part in both[: 1 + layer.bias]]


@torch.no_grad()
def descend(
    network: ChainGradients, images: Tensor, labels: Tensor, distance: Distance, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return distances (M,) of gradients, and their own in images and in dummy logits, if any.

    The latter are shaped as images (M, K, C, H, W), and take half the time of a graph: with the
    distance's derivative r in the gradients held fixed, ∇_x <∇_W ℓ(x; W), r> = ∇_x d/dε ℓ(x; W +
    ε r): one forward pass with tangents ż_l = r_l x_l + W_l ẋ_l, and one backward (Pearlmutter
    1994, with the roles of weights and images exchanged). `scale` (M,) multiplies each member's
    loss.
    """
    at = Linearised(network, images, labels, scale)
    pairs = zip(network.names, at.gradients(), strict=True)
    found = [value.reshape(-1, *network.shapes[name]) for name, value in pairs]
    value, along, factor = distance(found)
    wide = (r.flatten(2) if r.ndim > 2 else r.unsqueeze(2) for r in along)
    back, in_logits = at.pull_back(dict(zip(network.names, wide, strict=True)), fused=True)
    if in_logits is not None:
        in_logits = in_logits * factor[:, None, None]
    return value, back * factor[:, None, None, None, None], in_logits
