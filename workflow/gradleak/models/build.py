"""Chains as PyTorch modules."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvLayer


def activation_module(activation: Activation) -> nn.Module:
    """Give the PyTorch module of an activation."""
    if activation.name == "leaky_relu":
        return nn.LeakyReLU(activation.slope)
    return {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "relu": nn.ReLU, "identity": nn.Identity}[
        activation.name
    ]()


class ChainModule(nn.Module):
    """A `Chain` that can be run: (B, C, H, W) -> (B, classes).

    Parameters are named as the chain's layers (``conv1.weight``), so that files and attacks
    share one set of names.
    """

    def __init__(self, chain: Chain) -> None:
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
                    bias=layer.bias,
                )
            else:
                module = nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
            self.add_module(layer.name, module)
        self.activations = nn.ModuleList(activation_module(a.activation) for a in chain.layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the last activation for images (B, C, H, W)."""
        inputs = []
        for layer, activation in zip(self.chain.layers, self.activations, strict=True):
            if not isinstance(layer, ConvLayer) and x.ndim > 2:
                x = x.flatten(1)
            inputs.append(x)
            z = self.get_submodule(layer.name)(x)
            if isinstance(layer, ConvLayer) and layer.skip:
                z = z + inputs[-layer.skip]
            x = activation(z)
        return x


def load(chain: Chain, weights: dict[str, np.ndarray], dtype: torch.dtype) -> ChainModule:
    """Module of `chain` in evaluation mode with the given weights."""
    with torch.random.fork_rng(devices=[]):
        module = ChainModule(chain).to(dtype)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
    return module.eval()
