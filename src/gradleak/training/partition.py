"""Distribution of images to the clients of federated training."""

import numpy as np

from gradleak.errors import DataError
from gradleak.training.client_sampling import Federated

# Stream of random numbers for splits, beside the seed.
SPLIT = 3


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
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        places = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(clients, alpha))
        # Rounded sums, so that sizes add up to that of the class.
        ends = np.rint(np.cumsum(shares)[:-1] * len(places)).astype(np.int64)
        for part, found in zip(parts, np.split(places, ends), strict=True):
            part.append(found)
    return [np.concatenate(part) for part in parts]
