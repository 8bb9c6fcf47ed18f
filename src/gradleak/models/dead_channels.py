"""Channels that are zero for every image; a malicious server may leave few others."""

from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from torch import nn

from gradleak.models.build import ChainModule
from gradleak.models.chain import Chain, ConvLayer


def live_channels(
    chain: Chain, weights: Mapping[str, np.ndarray], low: float, high: float
) -> list[np.ndarray]:
    """Return the channels of each convolution that are not certain to be zero, as sorted indices.

    Interval bounds are propagated through the network: for inputs within [l, u], initially
    [`low`, `high`], a channel's linear output z is at least b + Σ max(w, 0)·l + min(w, 0)·u, and at
    most b + Σ max(w, 0)·u + min(w, 0)·l. A channel is silent if ReLU follows and z ≤ 0, or if z = 0
    and the activation keeps 0, up to rounding in the client's arithmetic. Everything is live if
    channels are normalised or skipped.
    """
    layers = chain.convolutions
    if not chain.is_sequential or chain.is_normalised:
        return [np.arange(layer.shape.filters) for layer in layers]
    found = []
    lows, highs = np.full(chain.input[0], low), np.full(chain.input[0], high)
    for layer in layers:
        least, most = _linear(layer, weights, lows, highs)
        lows, highs = layer.activation.forward(least), layer.activation.forward(most)
        relu = layer.activation.name == "relu"
        live = ~(most <= 0.0) if relu else (least != 0.0) | (most != 0.0) | (lows != 0.0)
        found.append(np.flatnonzero(live))
    return found


def _linear(
    layer: ConvLayer, weights: Mapping[str, np.ndarray], low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of a layer's linear output, one per channel; pools would keep them."""
    if layer.padding_mode == "zeros" and any(layer.shape.padding):
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    weight = weights[f"{layer.name}.weight"]
    up = np.maximum(weight, 0.0).sum(axis=(2, 3), dtype=np.float64)
    down = np.minimum(weight, 0.0).sum(axis=(2, 3), dtype=np.float64)
    bias = weights[f"{layer.name}.bias"].astype(np.float64) if layer.bias else 0.0
    return bias + up @ low + down @ high, bias + up @ high + down @ low


def drop_silent(module: ChainModule, live: list[np.ndarray]) -> None:
    """Remove all channels but the `live` ones from the convolutions, in place.

    One channel stays where none is live. The classifier's output is no longer valid.
    """
    before = torch.arange(module.chain.input[0])
    for layer, channels in zip(module.chain.convolutions, live, strict=True):
        convolution = module.get_submodule(layer.name)
        assert isinstance(convolution, nn.Conv2d)
        rows = torch.from_numpy(_kept(channels))
        convolution.weight = nn.Parameter(convolution.weight.detach()[rows][:, before])
        if convolution.bias is not None:
            convolution.bias = nn.Parameter(convolution.bias.detach()[rows])
        convolution.in_channels, convolution.out_channels = len(before), len(rows)
        before = rows


def with_silent(chain: Chain, features: torch.Tensor, live: list[np.ndarray]) -> torch.Tensor:
    """Expand features (K, m) without silent channels to those (K, n) of the whole network."""
    if not live or len(live[-1]) == (last := chain.convolutions[-1]).shape.filters:
        return features
    images, positions = len(features), prod(last.grid)
    whole = features.new_zeros((images, last.shape.filters, positions))
    whole[:, _kept(live[-1])] = features.view(images, -1, positions)
    return whole.flatten(1)


def _kept(live: np.ndarray) -> np.ndarray:
    """Channels of a convolution that `drop_silent` keeps."""
    return live if len(live) else np.zeros(1, dtype=int)
