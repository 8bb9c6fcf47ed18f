"""The contract of a defence."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gradleak.models.chain import Chain
from gradleak.targets import Images

# Looked up by name, so that an edit of one defence leaves the gradients of the others as they are.
DEFENCES = {
    "none": ("gradleak.defences.none", "NoDefence"),
    "clipping": ("gradleak.defences.clipping", "Clipping"),
    "soteria": ("gradleak.defences.soteria", "Soteria"),
    "gaussian_noise": ("gradleak.defences.gaussian_noise", "GaussianNoise"),
}


@dataclass(frozen=True)
class Client:
    """What a client has when it defends a gradient.

    Attributes
    ----------
    chain, weights
        The network that the server sent.
    images
        Its batch (K, C, H, W); may be read in parts, ``images[first:end]``.
    labels
        True classes (K,).
    """

    chain: Chain
    weights: Mapping[str, np.ndarray]
    images: Images
    labels: np.ndarray


class Defence(Protocol):
    """A defence with its settings bound."""

    def apply(
        self, client: Client, gradients: Mapping[str, np.ndarray], seed: int
    ) -> dict[str, np.ndarray]:
        """What is shared instead of `gradients` ``{parameter: array}``; same keys and shapes."""


def build(settings: dict[str, Any]) -> Defence:
    """Defence from an entry of ``defences`` in config.yaml."""
    options = {key: value for key, value in settings.items() if key != "method"}
    module, name = DEFENCES[settings["method"]]
    defence: Defence = getattr(importlib.import_module(module), name)(**options)
    return defence
