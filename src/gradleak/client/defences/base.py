"""A client's data, and the base class of defences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gradleak.models.chain import Chain
from gradleak.settings import registry
from gradleak.settings.fields import Method

if TYPE_CHECKING:
    from gradleak.data.targets import Images


Arrays = Mapping[str, np.ndarray]  # by parameter


@dataclass(frozen=True)
class Client:
    """Data of a client that defends a gradient."""

    chain: Chain  # the network that the server sent
    weights: Arrays  # its parameters
    images: Images  # the batch (K, C, H, W); may be read in parts, ``images[first:end]``
    labels: np.ndarray  # true classes (K,)
    # Gradient of one image's loss, by its number in the batch; None if it cannot be told.
    alone: Callable[[int], Arrays] | None = None


class Defence(Method, ABC):
    """An entry of ``defences`` in config.yaml: settings as fields."""

    @abstractmethod
    def apply(self, client: Client, gradients: Arrays, seed: int) -> dict[str, np.ndarray]:
        """Return the values shared instead of `gradients`, shapes kept."""


def build(settings: Mapping[str, Any]) -> Defence:
    """Return the defence of an entry of ``defences`` in config.yaml."""
    defence: Defence = registry.build("defences", settings)
    return defence


def noise_seed(seed: int, batch: int) -> int:
    """Seed of a defence's randomness, distinct for each initialization and batch."""
    return 7_368_787 + 100_003 * seed + batch
