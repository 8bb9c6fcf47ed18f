"""Chains as PyTorch modules."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gradleak.models.activations import Activation
from gradleak.models.chain import POOL, Chain, ConvLayer, LinearLayer
from gradleak.operators.structure import ConvShape


def activation_module(activation: Activation) -> nn.Module:
    """Give the PyTorch module of an activation."""
    if activation.name == "leaky_relu":
        return nn.LeakyReLU(activation.slope)
    return {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "relu": nn.ReLU, "identity": nn.Identity}[
        activation.name
    ]()


def pooled(x: torch.Tensor, pool: str) -> torch.Tensor:
    """Images (B, O, H, W) after a layer's `pool`, as of `gradleak.models.chain.ConvLayer`."""
    if pool == "none":
        return x
    if pool == "global":
        return x.mean((2, 3), keepdim=True)
    if pool == "max3":
        return functional.max_pool2d(x, 3, POOL, 1)
    return functional.max_pool2d(x, POOL) if pool == "max" else functional.avg_pool2d(x, POOL)


class ChainModule(nn.Module):
    """A `Chain` that can be run: (B, C, H, W) -> (B, classes).

    Parameters are named as the chain's layers (``conv1.weight``), so that files and attacks
    share one set of names. With `statistics`, norms keep a running mean and variance (momentum
    0.1) in training and use them in evaluation; without, they always use the batch's own.
    """

    def __init__(self, chain: Chain, *, statistics: bool = False) -> None:
        super().__init__()
        self.chain = chain
        for layer in chain.layers:
            module: nn.Module
            if isinstance(layer, ConvLayer):
                shape = layer.shape
                module = nn.Conv2d(
                    shape.channels,
                    shape.filters,
                    shape.kernel,
                    stride=shape.stride,
                    padding=shape.padding,
                    padding_mode=layer.padding_mode,
                    bias=layer.bias,
                )
                self._add_norm(layer, layer.name, statistics)
                if layer.projection is not None:
                    self.add_module(f"{layer.name}_skip", _projection(layer.projection))
                    self._add_norm(layer, f"{layer.name}_skip", statistics)
            else:
                module = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
            self.add_module(layer.name, module)
        self.activations = nn.ModuleList(activation_module(a.activation) for a in chain.layers)

    def _add_norm(self, layer: ConvLayer, name: str, statistics: bool) -> None:
        if layer.norm != "none":
            norm = nn.BatchNorm2d(layer.shape.filters, track_running_stats=statistics)
            self.add_module(f"{name}_norm", norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the last activation for images (B, C, H, W)."""
        return self.classify(self.features(x))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """What the convolutions give for images (B, C, H, W), flat: (B, n)."""
        inputs = []
        for layer, activation in zip(self.chain.convolutions, self.activations, strict=False):
            inputs.append(x)
            z = self._linear(layer, layer.name, x)
            if layer.skip:
                start = inputs[-layer.skip]
                projected = layer.projection is not None
                z = z + (self._linear(layer, f"{layer.name}_skip", start) if projected else start)
            x = pooled(activation(z), layer.pool)
        return x.flatten(1)

    def _linear(self, layer: ConvLayer, name: str, x: torch.Tensor) -> torch.Tensor:
        """Convolution `name` and its norm."""
        z: torch.Tensor = self.get_submodule(name)(x)
        return z if layer.norm == "none" else self.get_submodule(f"{name}_norm")(z)

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the last activation for what the convolutions give (B, n)."""
        depth = len(self.chain.convolutions)
        for layer, activation in zip(
            self.chain.layers[depth:], self.activations[depth:], strict=True
        ):
            assert isinstance(layer, LinearLayer)
            x = activation(self.get_submodule(layer.name)(x))
            x = functional.dropout(x, layer.dropout, self.training) if layer.dropout else x
        return x


def _projection(shape: ConvShape) -> nn.Conv2d:
    """1x1 convolution without a bias."""
    return nn.Conv2d(shape.channels, shape.filters, 1, stride=shape.stride, bias=False)


STATISTICS = (("running_mean", np.zeros), ("running_var", np.ones))


def with_statistics(chain: Chain, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights of a chain, with running statistics of norms that have not been trained: 0 and 1."""
    out = dict(weights)
    for name, value in weights.items():
        if name.endswith("_norm.weight"):
            for part, start in STATISTICS:
                out.setdefault(
                    f"{name.removesuffix('weight')}{part}", start(len(value), np.float32)
                )
    return out


def without_statistics(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights without running statistics: norms then use those of the batch."""
    parts = tuple(part for part, _ in STATISTICS)
    return {name: value for name, value in weights.items() if not name.endswith(parts)}


def load(
    chain: Chain, weights: Mapping[str, np.ndarray], dtype: torch.dtype, *, copy: bool = True
) -> ChainModule:
    """Module of `chain` in evaluation mode with the given weights.

    Without a `copy` it shares memory with them, and must not be trained.
    """
    # No initial weights are drawn: for VGG-16 that would take a second.
    statistics = any(name.endswith(".running_mean") for name in weights)
    with torch.device("meta"):
        module = ChainModule(chain, statistics=statistics)
    own = {name: torch.from_numpy(value).to(dtype, copy=copy) for name, value in weights.items()}
    if statistics:
        counts = {n: v for n, v in module.state_dict().items() if n.endswith("batches_tracked")}
        own |= {name: torch.zeros_like(value, device="cpu") for name, value in counts.items()}
    module.load_state_dict(own, assign=True)
    return module.eval()
