"""Forward and backward pass of a chain in float64, to analyse known images without PyTorch."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gradleak.errors import ConfigError
from gradleak.models.chain import Chain, ConvLayer, Layer, LinearLayer
from gradleak.models.losses import output_gradient
from gradleak.models.pools import POOL
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape

if TYPE_CHECKING:
    from gradleak.operators.convolution import Convolution

Weights = dict[str, np.ndarray]
POOLS = ("none", "max", "average")


def unknown_keys(chain: Chain) -> str:
    """Config keys of the layers that this module does not support; empty if there are none.

    ``norm: batch`` is one of them since it depends on the other images of a batch.
    """
    projected = any(layer.projection is not None for layer in chain.convolutions)
    keys = {"norm: batch": chain.is_normalised, "projection: true": projected}
    keys |= {f"pool: {a.pool}": True for a in chain.convolutions if a.pool not in POOLS}
    return ", ".join(key for key, there in keys.items() if there)


def _values(
    chain: Chain, layers: tuple[Layer, ...], weights: Weights, image: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs X of each of `layers`, the chain's first, the last one's output, and Z of each."""
    if unknown := unknown_keys(chain):
        raise ConfigError(
            f"models.{chain.name}: a single image cannot be analysed with {unknown}; choose a "
            "model without."
        )
    x = image.ravel().astype(np.float64)
    inputs, outputs = [], []
    for layer in layers:
        inputs.append(x)
        weight = weights[f"{layer.name}.weight"].astype(np.float64)
        bias = weights.get(f"{layer.name}.bias", np.zeros(1))
        if isinstance(layer, ConvLayer):
            z = _built(weight.tobytes(), _padded_shape(layer)).apply(_padded(x, layer))
            bias = np.repeat(bias, layer.shape.positions) if layer.bias else bias
            if layer.skip:
                z = z + inputs[-layer.skip]
        else:
            z = weight @ x
        outputs.append(z + bias)
        x = _pooled(layer.activation.forward(outputs[-1]), layer)
    return [*inputs, x], outputs


def _padded_shape(layer: ConvLayer) -> ConvShape:
    shape = layer.shape
    if layer.padding_mode == "zeros":
        return shape
    (down, across), (height, width) = shape.padding, shape.size
    return replace(shape, padding=(0, 0), size=(height + 2 * down, width + 2 * across))


def _padded(x: np.ndarray, layer: ConvLayer) -> np.ndarray:
    """Pad the input of a layer by repeating edges, if the layer does; flat."""
    if layer.padding_mode == "zeros":
        return x
    down, across = layer.shape.padding
    image = x.reshape(layer.shape.channels, *layer.shape.size)
    return np.pad(image, ((0, 0), (down, down), (across, across)), mode="edge").ravel()


def _unpadded(x: np.ndarray, layer: ConvLayer) -> np.ndarray:
    if layer.padding_mode == "zeros":
        return x
    out = np.zeros(layer.shape.channels * prod(layer.shape.size))
    np.add.at(out, _padded(np.arange(out.size), layer), x)
    return out


def _blocks(x: np.ndarray, layer: ConvLayer) -> np.ndarray:
    """Reshape the output of a layer's activation, flat, to 2x2 blocks (O, H, W, 4)."""
    height, width = layer.grid
    split = x.reshape(layer.shape.filters, height, POOL, width, POOL)
    return split.swapaxes(2, 3).reshape(layer.shape.filters, height, width, POOL**2)


def _pooled(x: np.ndarray, layer: Layer) -> np.ndarray:
    if isinstance(layer, LinearLayer) or layer.pool == "none":
        return x
    blocks = _blocks(x, layer)
    return (blocks.max(-1) if layer.pool == "max" else blocks.mean(-1)).ravel()


def _unpooled(back: np.ndarray, x: np.ndarray, layer: Layer) -> np.ndarray:
    """Adjoint of `_pooled` at `x`, flat."""
    if isinstance(layer, LinearLayer) or layer.pool == "none":
        return back
    share = np.full(POOL**2, 1.0 / POOL**2)
    if layer.pool == "max":
        share = np.eye(POOL**2)[_blocks(x, layer).argmax(-1)]
    spread = share * back.reshape(layer.shape.filters, *layer.grid, 1)
    return spread.reshape(*spread.shape[:3], POOL, POOL).swapaxes(2, 3).ravel()


@lru_cache(maxsize=16)
def _built(weight: bytes, shape: ConvShape) -> Convolution:
    """W of a layer, by value: building it takes longer than the products with it."""
    from gradleak.operators.convolution import Convolution  # SciPy takes long to import

    sizes = (shape.filters, shape.channels, *shape.kernel)
    return Convolution(np.frombuffer(weight, np.float64).reshape(sizes), shape)


def forward(chain: Chain, weights: Weights, image: np.ndarray) -> np.ndarray:
    """Output (m,) of the last activation for one image (C, H, W)."""
    return _values(chain, chain.layers, weights, image)[0][-1]


def margin_label(chain: Chain, weights: Weights, image: np.ndarray, labels: str) -> int:
    """Label y of a margin loss for one image (C, H, W): the network's own sign, or its opposite.

    ``same`` leaves μ > 0, which may have a twin; ``opposite`` leaves μ < 0, which has none.
    """
    own = 1 if forward(chain, weights, image)[0] >= 0 else -1
    return own if labels == "same" else -own


def fc_input(chain: Chain, weights: Weights, image: np.ndarray) -> np.ndarray:
    """Input (n,) of the first fully connected layer for one image (C, H, W)."""
    return _values(chain, chain.convolutions, weights, image)[0][-1]


def deltas(
    chain: Chain, weights: Weights, image: np.ndarray, label: int, loss: str = "cross_entropy"
) -> dict[str, np.ndarray]:
    """Return dJ/dZ (O, Ph, Pw) of every convolution, by name, for one image (C, H, W).

    COPA eq. (3), R-GAP eq. (12) to (14). A skip passes dJ/dZ of its last layer back to the input
    of its first one as well. `label` is the true class, −1 or 1 for a margin loss; `loss` is J, one
    of `gradleak.models.losses.LOSSES`, of the last activation's output.
    """
    _, found = _backward(chain, weights, image, label, loss)
    return {
        layer.name: delta.reshape(layer.shape.filters, *layer.shape.output)
        for layer, delta in zip(chain.convolutions, found, strict=False)
    }


def weight_gradients(
    chain: Chain, weights: Weights, image: np.ndarray, label: int, loss: str
) -> dict[str, np.ndarray]:
    """Return dJ/dW of every layer, by its name, for one image; parameters as for `deltas`."""
    inputs, found = _backward(chain, weights, image, label, loss)
    out = {}
    for layer, x, delta in zip(chain.layers, inputs, found, strict=False):
        if isinstance(layer, ConvLayer):
            grid = delta.reshape(layer.shape.filters, *layer.shape.output)
            constraint = GradientConstraint(grid, _padded_shape(layer))
            out[layer.name] = constraint.apply(_padded(x, layer))
        else:
            out[layer.name] = np.outer(delta, x).ravel()
    return out


def _backward(
    chain: Chain, weights: Weights, image: np.ndarray, label: int, loss: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return X of each layer and the output, and dJ/dZ of each layer, flat."""
    inputs, z = _values(chain, chain.layers, weights, image)
    # dJ/dX of the input of each layer, and after the last layer dJ/d(output).
    back: list[Any] = [0.0] * len(chain.layers) + [output_gradient(loss, inputs[-1], label)]
    found: list[np.ndarray] = [np.empty(0)] * len(chain.layers)
    for i, layer in reversed(list(enumerate(chain.layers))):
        after = _unpooled(back[i + 1], layer.activation.forward(z[i]), layer)
        delta = found[i] = after * layer.activation.derivative(z[i])
        weight = weights[f"{layer.name}.weight"].astype(np.float64)
        if isinstance(layer, ConvLayer):
            convolution = _built(weight.tobytes(), _padded_shape(layer))
            back[i] = back[i] + _unpadded(convolution.adjoint(delta), layer)
            if layer.skip:
                back[i + 1 - layer.skip] = back[i + 1 - layer.skip] + delta
        else:
            back[i] = back[i] + weight.T @ delta
    return inputs, found
