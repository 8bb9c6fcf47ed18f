"""The contract of an attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gradleak.models.chain import Chain


@dataclass(frozen=True)
class AttackerView:
    """All that an attacker knows: never the image.

    Attributes
    ----------
    chain
        Architecture.
    weights, gradients
        ``{parameter: array}``, what the server sent and what the client shared.
    label
        True class if it was granted, else None.
    low, high
        Range of the network's input.
    """

    chain: Chain
    weights: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    label: int | None
    low: float
    high: float


@dataclass(frozen=True)
class LayerFacts:
    """What solving one layer told.

    Attributes
    ----------
    layer
        Name in the chain.
    equation
        Number of the COPA equation that was solved.
    residual
        ||U x − V|| relative to ||V||.
    iterations
        Steps of the solver.
    stop
        Why the solver stopped.
    clipped
        Values moved into the range of the activation before it was inverted.
    trace
        Objective after each outer step, empty for a direct solve.
    """

    layer: str
    equation: str
    residual: float
    iterations: int
    stop: str
    clipped: int = 0
    trace: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reconstruction:
    """An attack's answer for one image.

    Attributes
    ----------
    image
        (C, H, W) in the range of the network's input.
    stop
        Why the attack stopped.
    layers
        Facts about each layer, last layer first.
    label
        Label that the attack used or found.
    fc_input
        Input (n,) of the first fully connected layer as the attack found it, where it did.
    """

    image: np.ndarray
    stop: str
    layers: tuple[LayerFacts, ...] = ()
    label: int | None = None
    fc_input: np.ndarray | None = None


class Attack(Protocol):
    """An attack with its settings bound."""

    def applies(self, chain: Chain) -> str | None:
        """None if the attack can be run on `chain`, else the reason why not, one sentence."""

    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """Reconstruct one image.

        Raises
        ------
        NumericsError
            If the numbers do not allow it (zero or overflowing gradients). The run is then
            recorded as failed with this reason.
        """
