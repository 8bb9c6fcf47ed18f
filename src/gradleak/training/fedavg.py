"""Aggregation of clients' weights by a server."""

from collections.abc import Mapping

import numpy as np

from gradleak.errors import ConfigError


class Aggregate:
    """Mean of clients' weights, by numbers of images (FedAvg, McMahan et al. 2017).

    Σ_k n_k w_k / Σ_k n_k over parameters and running statistics alike, summed in float64 in the
    order in which clients are added. `like` are the server's weights, whose names and shapes the
    clients' must have.
    """

    def __init__(self, like: Mapping[str, np.ndarray]) -> None:
        self._like = like
        self._sums = {name: np.zeros(value.shape) for name, value in like.items()}
        self._images = 0

    def add(self, client: int, weights: Mapping[str, np.ndarray], images: int) -> None:
        """Add the weights of one client; `ConfigError` if they do not match the server's model."""
        if wrong := self._difference(weights):
            raise ConfigError(
                f"Client {client} {wrong}; weights of unlike models have no mean, so give every "
                "client the server's model."
            )
        for name, total in self._sums.items():
            total += images * weights[name].astype(np.float64)
        self._images += images

    def _difference(self, weights: Mapping[str, np.ndarray]) -> str:
        for name in sorted(self._like.keys() ^ weights.keys()):
            which, other = ("lacks", "has") if name in self._like else ("has", "lacks")
            return f"{which} {name}, which the server's model {other}"
        for name, value in self._like.items():
            if (shape := weights[name].shape) != value.shape:
                return f"has {name} of shape {shape}, the server's model of {value.shape}"
        return ""

    def mean(self) -> dict[str, np.ndarray]:
        """The mean, in the server's dtype; the server's own weights if none was added."""
        if not self._images:
            return dict(self._like)
        return {
            name: (total / self._images).astype(self._like[name].dtype)
            for name, total in self._sums.items()
        }
