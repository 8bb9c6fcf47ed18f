"""The contract of a defence."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from gradleak.models.chain import Chain

# Looked up by name, so that an edit of one defence leaves the gradients of the others as they are.
DEFENCES = {
    "none": ("gradleak.defences.none", "NoDefence"),
    "gaussian_noise": ("gradleak.defences.gaussian_noise", "GaussianNoise"),
}


class Defence(Protocol):
    """A defence with its settings bound."""

    def apply(
        self, chain: Chain, gradients: Mapping[str, np.ndarray], seed: int
    ) -> dict[str, np.ndarray]:
        """What is shared instead of `gradients` ``{parameter: array}``; same keys and shapes."""


def build(settings: dict[str, Any]) -> Defence:
    """Defence from an entry of ``defences`` in config.yaml."""
    options = {key: value for key, value in settings.items() if key != "method"}
    module, name = DEFENCES[settings["method"]]
    defence: Defence = getattr(importlib.import_module(module), name)(**options)
    return defence
