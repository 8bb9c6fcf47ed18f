"""Clients of a federation: their images, their part in a round, and the mean of their weights."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradleak.errors import ConfigError, DataError

# Streams of random numbers for choices and responses, beside seed and round, and for splits.
CHOICE, ANSWERS, SPLIT = 1, 2, 3


def chosen_number(share: float, clients: int) -> int:
    """Clients in a round: the integer nearest to `share` of them, halves rounded up."""
    return int(share * clients + 0.5)


@dataclass(frozen=True)
class Federated:
    """Settings of a federation; ``federated`` of an entry of ``trainings`` has the same keys."""

    clients: int  # K
    share: float = 1.0  # C of McMahan et al. (2017): about C·K clients take part in a round
    local_epochs: int = 1  # passes over a client's images in a round
    split: str = "iid"  # see `split`
    alpha: float = 0.5  # see `dirichlet`
    answering: float = 1.0  # probability that a chosen client responds; else it drops out

    def chosen(self, seed: int, number: int) -> list[int]:
        """Clients chosen in round `number`, in ascending order."""
        generator = np.random.default_rng((seed, number, CHOICE))
        size = chosen_number(self.share, self.clients)
        return sorted(int(c) for c in generator.choice(self.clients, size, replace=False))

    def silent(self, seed: int, number: int) -> list[int]:
        """Clients that would not respond in round `number` if chosen."""
        drawn = np.random.default_rng((seed, number, ANSWERS)).random(self.clients)
        return [client for client in range(self.clients) if drawn[client] >= self.answering]


def split(labels: np.ndarray, settings: Federated, seed: int) -> list[np.ndarray]:
    """Positions of each client's images, int64 (n,), ascending, among those with `labels` (N,).

    Each image goes to one client. `settings` choose ``iid``: random parts, whose sizes differ by at
    most one; or `dirichlet`. Raises `DataError` if a client would have no image.
    """
    if len(labels) < settings.clients:
        raise DataError(
            f"trainings: {settings.clients} clients cannot share {len(labels)} images; lower "
            "federated.clients, or raise train."
        )
    generator = np.random.default_rng((seed, SPLIT))
    if settings.split == "iid":
        parts = np.array_split(generator.permutation(len(labels)), settings.clients)
    else:
        parts = dirichlet(labels, settings.clients, settings.alpha, generator)
    # Only with dirichlet: equal parts of as many images as clients, or more, are never empty.
    for client, part in enumerate(parts):
        if not len(part):
            raise DataError(
                f"trainings: the split (dirichlet, alpha: {settings.alpha:g}, seed: {seed}) "
                f"leaves client {client} of {settings.clients} without an image; raise alpha or "
                "train, lower federated.clients, or choose another seed."
            )
    return [np.sort(part) for part in parts]


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, generator: np.random.Generator
) -> list[np.ndarray]:
    """Split each class among the clients in proportions drawn from Dir(alpha, …, alpha).

    With small `alpha` few clients share a class. Hsu et al. (2019) draw a client's proportions of
    classes and keep clients equally large; drawing a class's proportions of clients (Yurochkin et
    al. 2019) uses each image once, and clients differ in size.
    """
    found = []
    for label in np.unique(labels):
        places = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(clients, alpha))
        # Rounded sums, so that sizes add up to that of the class.
        ends = np.rint(np.cumsum(shares)[:-1] * len(places)).astype(np.int64)
        found.append(np.split(places, ends))
    return [np.concatenate(part) for part in zip(*found, strict=True)]


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
        means = {name: total / self._images for name, total in self._sums.items()}
        return {name: mean.astype(self._like[name].dtype) for name, mean in means.items()}
