"""Participation in a round of federated training: clients chosen by the server that respond."""

from dataclasses import dataclass

import numpy as np

# Streams of random numbers for choices and responses, beside seed and round.
CHOICE, ANSWERS = 1, 2


def chosen_number(share: float, clients: int) -> int:
    """Clients in a round: the integer nearest to `share` of them, halves rounded up."""
    return int(share * clients + 0.5)


@dataclass(frozen=True)
class Federated:
    """Settings of a federation; ``federated`` of an entry of ``trainings`` has the same keys."""

    clients: int  # K
    share: float = 1.0  # C of McMahan et al. (2017): about C·K clients take part in a round
    local_epochs: int = 1  # passes over a client's images in a round
    split: str = "iid"  # see `gradleak.training.partition.split`
    alpha: float = 0.5  # see there
    answering: float = 1.0  # probability that a chosen client responds; else it drops out

    def chosen(self, seed: int, number: int) -> list[int]:
        """Clients chosen in round `number`, in ascending order."""
        generator = np.random.default_rng((seed, number, CHOICE))
        size = chosen_number(self.share, self.clients)
        return sorted(int(c) for c in generator.choice(self.clients, size, replace=False))

    def silent(self, seed: int, number: int) -> list[int]:
        """Clients that would not respond in round `number` if chosen."""
        generator = np.random.default_rng((seed, number, ANSWERS))
        drawn = generator.random(self.clients)
        return [client for client in range(self.clients) if drawn[client] >= self.answering]
