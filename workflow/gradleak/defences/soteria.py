"""Soteria: some features are chosen, and what the gradient tells of them is not shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from gradleak.defences.base import Client
from gradleak.models.build import load
from gradleak.models.chain import Chain, LinearLayer, images_at_once


@dataclass(frozen=True)
class Soteria:
    """Sets columns of the first fully connected layer's gradient to zero (Sun et al. 2021).

    A column belongs to a feature r_i that enters this layer. Its score is
    Σ_k ||∂r_i/∂x_k|| / |r_i(x_k)| over the images x_k of the batch, as MKOR's authors compute it;
    the columns of the lowest scores are zeroed: an image changed so that the features take that
    loss into account has to change most there. It takes a pass back for each of the n features,
    where a gradient takes one.

    Parameters
    ----------
    prune
        Share of the columns that are zeroed, in (0, 1); MKOR Table 7 has 0.3.
    """

    prune: float = 0.3

    def apply(
        self, client: Client, gradients: Mapping[str, np.ndarray], seed: int
    ) -> dict[str, np.ndarray]:
        """See `gradleak.defences.base.Defence`; deterministic, so `seed` changes nothing."""
        found = scores(client)
        name = f"{client.chain.layers[len(client.chain.convolutions)].name}.weight"
        out = {key: value.copy() for key, value in gradients.items()}
        out[name][:, found < np.quantile(found, self.prune)] = 0.0
        return out


def scores(client: Client) -> np.ndarray:
    """Σ_k ||∂r_i/∂x_k|| / |r_i(x_k)| of each feature (n,) that enters the classifier.

    A feature that is 0 for an image counts there with 0: it has no gradient either.
    """
    module = load(client.chain, client.weights, torch.float32)
    total: np.ndarray | float = 0.0
    size, at_once = len(client.images), images_at_once(client.chain)
    for first in range(0, size, at_once):
        images = torch.from_numpy(client.images[first : first + at_once]).float().requires_grad_()
        features = module.features(images)
        value = np.abs(features.detach().numpy().astype(float))
        norms = _norms(features, images)
        total = total + np.divide(norms, value, out=np.zeros_like(norms), where=value > 0).sum(0)
    assert isinstance(total, np.ndarray)
    return total


def cost(chain: Chain) -> dict[str, str | int]:
    """Passes back through the convolutions that Soteria takes for a batch, and a gradient's own.

    A pass back costs about as much whatever it starts from, so their ratio is about that of times;
    large networks take the batch in parts, which multiplies both.
    """
    features = next(layer.inputs for layer in chain.layers if isinstance(layer, LinearLayer))
    return {"model": chain.name, "features": features, "passes": features, "gradient_passes": 1}


def _norms(features: torch.Tensor, images: torch.Tensor) -> np.ndarray:
    """||∂r_i(x_k)/∂x_k|| (K, n): one pass back a feature, for all images at once."""
    # Images do not influence each other, so the sum over them has each one's own derivative.
    sums = features.sum(0)
    found = []
    for value in sums:
        (gradient,) = torch.autograd.grad(value, images, retain_graph=True)
        found.append(gradient.flatten(1).norm(dim=1))
    return torch.stack(found, dim=1).numpy().astype(float)
