"""Who takes part in a round of a federated training: chosen by the server, and answering."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# What clients are chosen and answer by, beside seed and round.
CHOICE, ANSWERS = 1, 2


def chosen_number(share: float, clients: int) -> int:
    """Clients in a round: the whole number nearest to `share` of them, halves upwards."""
    return int(share * clients + 0.5)


@dataclass(frozen=True)
class Federated:
    """Settings of a federation; ``federated`` of a training in config.yaml holds the same keys.

    Parameters
    ----------
    clients
        K.
    share
        C of McMahan et al. (2017): about C·K clients take part in a round.
    local_epochs
        Passes over a client's images in a round.
    split, alpha
        See `gradleak.training.splits.split`.
    answering
        Probability that a chosen client answers; else it drops out of the round.
    """

    clients: int
    share: float = 1.0
    local_epochs: int = 1
    split: str = "iid"
    alpha: float = 0.5
    answering: float = 1.0

    def chosen(self, seed: int, number: int) -> list[int]:
        """Clients chosen in round `number`, in ascending order."""
        generator = np.random.default_rng((seed, number, CHOICE))
        size = chosen_number(self.share, self.clients)
        return sorted(int(c) for c in generator.choice(self.clients, size, replace=False))

    def silent(self, seed: int, number: int) -> list[int]:
        """Clients that do not answer in round `number` if they are chosen."""
        generator = np.random.default_rng((seed, number, ANSWERS))
        drawn = generator.random(self.clients)
        return [client for client in range(self.clients) if drawn[client] >= self.answering]
