"""Forward and backward pass of a chain in float64, to analyse known images without PyTorch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gradleak.losses import output_gradient
from gradleak.models.chain import Chain, ConvLayer, Layer
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.structure import ConvShape

Weights = dict[str, np.ndarray]


def _values(
    layers: tuple[Layer, ...], weights: Weights, image: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs X of each of `layers` and the output of the last of them, and Z of each."""
    x = image.ravel().astype(np.float64)
    inputs, outputs = [], []
    for layer in layers:
        inputs.append(x)
        weight = weights[f"{layer.name}.weight"].astype(np.float64)
        bias = weights.get(f"{layer.name}.bias", np.zeros(1))
        if isinstance(layer, ConvLayer):
            z = _convolution(weight, layer).apply(x)
            bias = np.repeat(bias, layer.shape.positions) if layer.bias else bias
            if layer.skip:
                z = z + inputs[-layer.skip]
        else:
            z = weight @ x
        outputs.append(z + bias)
        x = layer.activation.forward(outputs[-1])
    return [*inputs, x], outputs


def _convolution(weight: np.ndarray, layer: ConvLayer) -> Convolution:
    """W of a layer, `weight` in float64; built once for images that share it."""
    return _built(weight.tobytes(), layer.shape)


@lru_cache(maxsize=16)
def _built(weight: bytes, shape: ConvShape) -> Convolution:
    """W of a layer, by value: building it takes longer than the products with it."""
    sizes = (shape.filters, shape.channels, *shape.kernel)
    return Convolution(np.frombuffer(weight, np.float64).reshape(sizes), shape)


def forward(chain: Chain, weights: Weights, image: np.ndarray) -> np.ndarray:
    """Output (m,) of the last activation for one image (C, H, W)."""
    return _values(chain.layers, weights, image)[0][-1]


def margin_label(chain: Chain, weights: Weights, image: np.ndarray, labels: str) -> int:
    """Label y of a loss of a margin for one image (C, H, W): the network's own sign, or not.

    ``same`` leaves μ > 0, which may have a twin; ``opposite`` leaves μ < 0, which has none.
    """
    own = 1 if forward(chain, weights, image)[0] >= 0 else -1
    return own if labels == "same" else -own


def fc_input(chain: Chain, weights: Weights, image: np.ndarray) -> np.ndarray:
    """Input (n,) of the first fully connected layer for one image (C, H, W)."""
    return _values(chain.convolutions, weights, image)[0][-1]


def deltas(
    chain: Chain, weights: Weights, image: np.ndarray, label: int, loss: str = "cross_entropy"
) -> dict[str, np.ndarray]:
    """dJ/dZ (O, Ph, Pw) of every convolution, by name, for one image (C, H, W).

    COPA eq. (3), R-GAP eq. (12) to (14). A skip hands dJ/dZ of its last layer back to the input
    of its first one as well.

    Parameters
    ----------
    chain, weights, image
        The network and its input.
    label
        True class; −1 or 1 for a loss of a margin.
    loss
        J, one of `gradleak.losses.LOSSES`, of the last activation's output.
    """
    _, found = _backward(chain, weights, image, label, loss)
    return {
        layer.name: found[i].reshape(layer.shape.filters, *layer.shape.output)
        for i, layer in enumerate(chain.convolutions)
    }


def weight_gradients(
    chain: Chain, weights: Weights, image: np.ndarray, label: int, loss: str
) -> dict[str, np.ndarray]:
    """dJ/dW of every layer, by the layer's name, for one image; parameters as for `deltas`."""
    inputs, found = _backward(chain, weights, image, label, loss)
    out = {}
    for layer, x, delta in zip(chain.layers, inputs, found, strict=False):
        if isinstance(layer, ConvLayer):
            grid = delta.reshape(layer.shape.filters, *layer.shape.output)
            out[layer.name] = GradientConstraint(grid, layer.shape).apply(x)
        else:
            out[layer.name] = np.outer(delta, x).ravel()
    return out


def _backward(
    chain: Chain, weights: Weights, image: np.ndarray, label: int, loss: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """X of each layer and the output, and dJ/dZ of each layer, flat."""
    inputs, z = _values(chain.layers, weights, image)
    # dJ/dX of the input of each layer, and behind the last layer dJ/d(output).
    back: list[np.ndarray | float] = [0.0] * len(chain.layers)
    back.append(output_gradient(loss, inputs[-1], label))
    found: list[np.ndarray] = [np.empty(0)] * len(chain.layers)
    for i, layer in reversed(list(enumerate(chain.layers))):
        delta = found[i] = back[i + 1] * layer.activation.derivative(z[i])
        weight = weights[f"{layer.name}.weight"].astype(np.float64)
        if isinstance(layer, ConvLayer):
            back[i] = back[i] + _convolution(weight, layer).adjoint(delta)
            if layer.skip:
                back[i + 1 - layer.skip] = back[i + 1 - layer.skip] + delta
        else:
            back[i] = back[i] + weight.T @ delta
    return inputs, found
