"""Forward and backward pass of a chain in float64, to analyse known images without PyTorch."""

from __future__ import annotations

import numpy as np

from gradleak.models.chain import Chain, ConvLayer, Layer
from gradleak.operators.convolution import Convolution

Weights = dict[str, np.ndarray]


def _preactivations(
    layers: tuple[Layer, ...], weights: Weights, image: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Z of each of `layers`, and the output of the last of them."""
    x = image.ravel().astype(np.float64)
    outputs = []
    for layer in layers:
        weight = weights[f"{layer.name}.weight"].astype(np.float64)
        bias = weights.get(f"{layer.name}.bias", np.zeros(1))
        if isinstance(layer, ConvLayer):
            z = Convolution(weight, layer.shape).apply(x)
            bias = np.repeat(bias, layer.shape.positions) if layer.bias else bias
        else:
            z = weight @ x
        outputs.append(z + bias)
        x = layer.activation.forward(outputs[-1])
    return outputs, x


def fc_input(chain: Chain, weights: Weights, image: np.ndarray) -> np.ndarray:
    """Input (n,) of the first fully connected layer for one image (C, H, W)."""
    return _preactivations(chain.convolutions, weights, image)[1]


def deltas(chain: Chain, weights: Weights, image: np.ndarray, label: int) -> dict[str, np.ndarray]:
    """dJ/dZ (O, Ph, Pw) of every convolution, by name, for one image (C, H, W).

    J is cross-entropy of the softmax of the last activation's output; COPA eq. (3).
    """
    z, output = _preactivations(chain.layers, weights, image)
    back = np.exp(output - output.max())
    back /= back.sum()
    back[label] -= 1.0
    found = {}
    for layer, value in zip(reversed(chain.layers), reversed(z), strict=True):
        delta = back * layer.activation.derivative(value)
        weight = weights[f"{layer.name}.weight"].astype(np.float64)
        if isinstance(layer, ConvLayer):
            found[layer.name] = delta.reshape(layer.shape.filters, *layer.shape.output)
            back = Convolution(weight, layer.shape).adjoint(delta)
        else:
            back = weight.T @ delta
    return found
