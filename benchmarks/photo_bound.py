"""Bound of the error that rounding of a float32 gradient causes in R-GAP's reconstruction.

R-GAP solves one layer after the other, from the last. An error δy of a layer's output is at most
δz = ||δy|| / s in its linear output z for a LeakyReLU of slope s, and, where W alone determines the
input, x = W^+ z errs by at most ||W^+|| δz. The product over all layers bounds the image's error.
K's rows, which R-GAP also uses, are left out.

The bound is reached only by an error along the least singular vector of every layer. For errors of
random direction, ||W^+|| gives way to sqrt(tr (W^T W)^-1 / m), and 1 / s to its root mean square.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from gradleak.operators.convolution import Convolution
from gradleak.operators.shape import ConvShape

# Random vectors of +1 and −1 for the trace (Hutchinson); its spread is below 1 % in these layers.
PROBES = 3


class Limits(NamedTuple):
    """PSNR that the conditioning of layers allows."""

    conditions: tuple[float, ...]  # condition number of each layer's W, first layer first
    bound: float  # PSNR in dB that an image in [0, 1] is sure to have, by W's rows alone
    expected: float  # likewise for errors of random direction


class Amplification(NamedTuple):
    """Of one convolution's inverse: its condition number, ||W^+|| and sqrt(tr (W^T W)^-1 / m)."""

    condition: float
    most: float
    mean: float


def amplification(convolution: Convolution) -> Amplification:
    """Measure a W of full column rank; infinite where it has less."""
    factor = convolution.factor if convolution.is_tall else None
    if factor is None:
        return Amplification(np.inf, np.inf, np.inf)
    (largest, smallest), (rows, n) = convolution.eigenvalues, convolution.shape
    probes = np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, n))
    trace = float(np.mean([probe @ factor.solve(probe) for probe in probes]))
    convolution.release()
    return Amplification(np.sqrt(largest / smallest), smallest**-0.5, np.sqrt(trace / rows))


def limits(model: nn.Sequential, images: torch.Tensor, slope: float) -> Limits:
    """Bound the PSNR of one image (1, C, S, S) in [0, 1] behind LeakyReLU of `slope`.

    `model` is a chain of convolutions, each before a LeakyReLU, and a linear layer. The error
    begins with what float32 changes in the input of that layer, which its gradient tells.
    """
    layers = [layer for layer in model if isinstance(layer, nn.Conv2d)]
    # Of all convolutions and of the linear layer. An output has the sign of its z.
    inputs: list[torch.Tensor] = []
    x, exact = images, images.double()
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                inputs.append(exact)
            if isinstance(layer, nn.Linear):
                break
            x, exact = layer(x), deepcopy(layer).double()(exact)
    worst = expected = float(torch.linalg.vector_norm(x.double() - exact))
    conditions = []
    for layer, (given, output) in zip(layers[::-1], list(pairwise(inputs))[::-1], strict=True):
        weight = layer.weight.detach().numpy().astype(np.float64)
        size = given.shape[2], given.shape[3]
        kernel, stride, padding = (
            (int(pair[0]), int(pair[1]))
            for pair in (layer.kernel_size, layer.stride, layer.padding)
        )
        shape = ConvShape(weight.shape[1], weight.shape[0], kernel, stride, padding, size)
        found = amplification(Convolution(weight, shape))
        conditions.append(found.condition)
        slopes = np.where(output.numpy() < 0.0, slope, 1.0)
        worst *= found.most / slope
        expected *= found.mean * float(np.sqrt(np.mean(slopes**-2.0)))
    pixels = np.sqrt(images.numel())
    decibel = [-20.0 * float(np.log10(error / pixels)) for error in (worst, expected)]
    return Limits(tuple(conditions[::-1]), *decibel)
