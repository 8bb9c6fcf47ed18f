"""The classifier alone: what each class sends back to its first layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from gradleak.gradients import DTYPES
from gradleak.losses import RAW
from gradleak.models.build import ChainModule
from gradleak.models.chain import Chain, LinearLayer

# Weights up to which everything is computed in float64.
SMALL = 5_000_000


class Head:
    """Fully connected layers of a network whose weights the server knows.

    Parameters
    ----------
    chain, weights
        The network as it was sent.
    loss
        ``cross_entropy`` or ``raw_logits``.
    """

    def __init__(self, chain: Chain, weights: Mapping[str, np.ndarray], loss: str) -> None:
        self.layers = [layer for layer in chain.layers if isinstance(layer, LinearLayer)]
        self.loss = loss
        size = sum(layer.inputs * layer.outputs for layer in self.layers)
        self._dtype = DTYPES["float64" if size <= SMALL else "float32"]
        self._module = _classifier(chain, weights, self._dtype)

    @property
    def first(self) -> LinearLayer:
        """The layer whose gradient is inverted."""
        return self.layers[0]

    @property
    def classes(self) -> int:
        """N."""
        return self.layers[-1].outputs

    @torch.no_grad()
    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """P (B, N) of features (B, n): softmax of the outputs; 0 under raw logits."""
        output = self._module.classify(self._tensor(features))
        if self.loss == RAW:
            return np.zeros(output.shape)
        return torch.softmax(output.double(), 1).numpy()

    def deltas(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """dℓ/dz (B, R) of the first layer's R linear outputs, one sample a row, not averaged.

        Parameters
        ----------
        features
            (B, n), or (1, n) for the same features in all rows.
        labels
            Classes (B,).
        """
        x = self._tensor(features)
        name = self.first.name
        linear = self._module.get_submodule(name)(x).detach()
        linear = linear.expand(len(labels), -1).contiguous().requires_grad_()
        x = self._module.activations[-len(self.layers)](linear)
        pairs = zip(self.layers[1:], self._module.activations[1 - len(self.layers) :], strict=False)
        for layer, activation in pairs if len(self.layers) > 1 else ():
            x = activation(self._module.get_submodule(layer.name)(x))
        truth = torch.from_numpy(np.asarray(labels))
        if self.loss == RAW:
            value = nn.functional.nll_loss(x, truth, reduction="sum")
        else:
            value = nn.functional.cross_entropy(x, truth, reduction="sum")
        (found,) = torch.autograd.grad(value, linear)
        return found.double().numpy()

    def _tensor(self, features: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(features)).to(self._dtype)


def _classifier(chain: Chain, weights: Mapping[str, np.ndarray], dtype: torch.dtype) -> ChainModule:
    """Module whose fully connected layers share memory with `weights` where they can."""
    with torch.device("meta"):
        module = ChainModule(chain)
    own = {
        name: torch.from_numpy(value).to(dtype)
        for name, value in weights.items()
        if name.startswith("fc")
    }
    module.load_state_dict(own, strict=False, assign=True)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module
