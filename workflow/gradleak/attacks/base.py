"""The contract of an attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from gradleak.errors import NumericsError
from gradleak.models.chain import Chain
from gradleak.servers.secret import Secret


@dataclass(frozen=True)
class AttackerView:
    """All that an attacker knows: never the image.

    Attributes
    ----------
    chain
        Architecture.
    weights, gradients
        ``{parameter: array}``, what the server sent and what the client shared.
    labels
        True classes (−1 or 1 for a loss of a margin) if they were granted, else None.
    low, high
        Range of the network's input.
    loss
        One of `gradleak.losses.LOSSES`.
    batch
        K, the number of images whose gradients were averaged.
    starts
        Images (S, K, C, H, W) that an optimiser is told to start from, None where it draws them.
    secret
        What the server kept to itself, if it is a malicious one.
    fingerprint
        Of the weights that the gradient was taken with.
    mode
        How the client's norms and dropout ran: ``training`` or ``evaluation``.
    keys
        Keys of locked layers ``{layer}_key``, where they were granted.
    """

    chain: Chain
    weights: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    labels: tuple[int, ...] | None
    low: float
    high: float
    loss: str = "cross_entropy"
    batch: int = 1
    starts: np.ndarray | None = None
    secret: Secret | None = None
    fingerprint: str = ""
    mode: str = "training"
    keys: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def label(self) -> int | None:
        """The label if it was granted and is one and the same for the whole batch, else None."""
        return self.labels[0] if self.labels and len(set(self.labels)) == 1 else None


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
    free
        Unknowns that no equation of the layer fixes: at least so many, by its sizes.
    """

    layer: str
    equation: str
    residual: float
    iterations: int
    stop: str
    clipped: int = 0
    trace: tuple[float, ...] = ()
    free: int = 0


@dataclass(frozen=True)
class Reconstruction:
    """One answer of an attack to one shared gradient.

    Attributes
    ----------
    images
        (K', C, H, W) in the range of the network's input; K' = K, or 1 where the attack takes a
        batch for one image.
    stop
        Why the attack stopped.
    layers
        Facts about each layer, last layer first.
    label
        Label that the attack used or found.
    fc_input
        Input (n,) of the first fully connected layer as the attack found it, where it did.
    kind
        What sort of answer it is: ``answer``, ``twin``, ``start 3``.
    failure
        Why the attacker holds the answer for a failure, judged without the original; empty if not.
    loss
        Final value of the attack's objective, NaN where it has none.
    evaluations
        Gradients of the network that the attack computed, 0 for a closed form.
    trace
        Objective at about 100 moments, for an iterative attack.
    others
        Further answers: twin data, other starts.
    classes, counts
        Class of each image (K',) and how many images of the batch it is the mean of, where the
        attack answers by class; else empty.
    partial
        Whether it answers for these classes alone by its nature, not because others were lost.
    """

    images: np.ndarray
    stop: str
    layers: tuple[LayerFacts, ...] = ()
    label: int | None = None
    fc_input: np.ndarray | None = None
    kind: str = "answer"
    failure: str = ""
    loss: float = float("nan")
    evaluations: int = 0
    trace: tuple[float, ...] = ()
    others: tuple[Reconstruction, ...] = ()
    classes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    partial: bool = False

    @property
    def image(self) -> np.ndarray:
        """The first image (C, H, W)."""
        return self.images[0]


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


@runtime_checkable
class ManyAttack(Protocol):
    """An attack that works on many gradients of one network architecture at once."""

    def applies(self, chain: Chain, mode: str = "training") -> str | None:
        """See `Attack.applies`; `mode` is that of `AttackerView`."""

    def run_many(
        self, views: Sequence[AttackerView], seeds: Sequence[int]
    ) -> list[Reconstruction | NumericsError]:
        """Answer each view, or say why not; one view's failure leaves the others as they are."""
