"""An attacker's view, a reconstruction, and the base classes of attacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gradleak.attacks.threat_models import Letter
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain
from gradleak.settings.fields import Method

if TYPE_CHECKING:
    from gradleak.servers.secret import Secret


Arrays = Mapping[str, np.ndarray]  # by parameter


@dataclass(frozen=True)
class AttackerView:
    """Everything an attacker knows, never the image."""

    chain: Chain  # architecture
    weights: Arrays  # that the server sent
    gradients: Arrays  # that the client shared
    # True classes (−1 or 1 for a margin loss) if they were granted, else None.
    labels: tuple[int, ...] | None
    low: float  # range of the network's input
    high: float
    loss: str = "cross_entropy"  # one of `gradleak.models.losses.LOSSES`
    batch: int = 1  # K, the number of images whose gradients were averaged
    # Images (S, K, C, H, W) given to an optimiser as starting points; None: it draws its own.
    starts: np.ndarray | None = None
    secret: Secret | None = None  # what a malicious server kept to itself, else None
    fingerprint: str = ""  # of the weights that the gradient was taken with
    mode: str = "training"  # of the client's batch norms and dropout, or "evaluation"
    keys: Arrays = field(default_factory=dict)  # granted keys of locked layers, {layer}_key

    @property
    def label(self) -> int | None:
        """The granted label if the whole batch has the same one, else None."""
        return self.labels[0] if self.labels and len(set(self.labels)) == 1 else None


@dataclass(frozen=True)
class LayerFacts:
    """Diagnostics from solving one layer."""

    layer: str  # name in the chain
    equation: str  # number of the COPA equation that was solved
    residual: float  # ||U x − V|| relative to ||V||
    iterations: int  # steps of the solver
    stop: str  # why the solver stopped
    clipped: int = 0  # values moved into the range of the activation before it was inverted
    trace: tuple[float, ...] = ()  # objective after each outer step, empty for a direct solve
    free: int = 0  # unknowns that no equation of the layer fixes: a lower bound from its sizes
    # What solving U x = V takes, estimated from sizes, see `gradleak.operators.estimates`: the
    # path, operations of its factor and of each step, bytes. Empty and 0 for other problems.
    path: str = ""
    operations: float = 0.0
    step_operations: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True)
class Reconstruction:
    """One reconstruction of an attack from one shared gradient."""

    # (K', C, H, W) in the range of the network's input; K' = K, or 1 where the attack treats a
    # batch as one image.
    images: np.ndarray
    stop: str  # why the attack stopped
    layers: tuple[LayerFacts, ...] = ()  # last layer first
    label: int | None = None  # label that the attack used or inferred
    # Input (n,) of the first fully connected layer, where the attack finds it.
    fc_input: np.ndarray | None = None
    kind: str = "answer"  # or "twin", "start 3"
    # Why the attacker considers it failed, judged without the original; empty if it does not.
    failure: str = ""
    loss: float = float("nan")  # final value of the attack's objective, NaN where it has none
    evaluations: int = 0  # gradients of the network computed; 0 for a closed form
    trace: tuple[float, ...] = ()  # objective at about 100 moments, for an iterative attack
    others: tuple[Reconstruction, ...] = ()  # further reconstructions: twins, other starts
    # Class of each image (K',) and the number of images of the batch that it averages, for attacks
    # that reconstruct class means; else empty.
    classes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    # True if the attack covers only these classes by design, not because it lost others.
    partial: bool = False

    @property
    def image(self) -> np.ndarray:
        """The first image (C, H, W)."""
        return self.images[0]


class Entry(Method):
    """An entry of ``attacks`` in config.yaml: settings as fields, needs as class attributes.

    Fields of type `gradleak.settings.fields.Hidden` are set in Python code only.
    """

    # What its attacker has; without a server of malicious weights and without local steps.
    threat: ClassVar[Letter] = "B"
    # Iterative: runs on `device`, uses a second thread for large batches, can take hours.
    searches: ClassVar[bool] = False
    # Reads the secret of a server of the same method and compares no gradients itself.
    reads_secret: ClassVar[bool] = False
    # Inverts every activation; networks with one that has no inverse are refused at load.
    inverts_activations: ClassVar[bool] = False
    gives_twins: ClassVar[bool] = False  # returns a twin beside its reconstruction
    # Combines reconstructions of other attacks and uses no gradient itself.
    postprocesses: ClassVar[bool] = False

    @property
    def needs_labels(self) -> bool:
        """True if labels must be granted, or inferred from a single image's gradient."""
        return False

    @property
    def made_from(self) -> list[str]:
        """Ids of the attacks whose reconstructions it needs, from its setting `of`."""
        of = getattr(self, "of", None)
        return [] if of is None else [of] if isinstance(of, str) else list(of)

    def contradiction(self) -> str | None:
        """Return why these settings cannot be combined in config.yaml, or None."""
        return None


class Attack(Entry, ABC):
    """An attack on one gradient at a time."""

    @abstractmethod
    def applies(self, chain: Chain) -> str | None:
        """Return in one sentence why the attack cannot be run on `chain`, or None if it can."""

    @abstractmethod
    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """Reconstruct one image; `NumericsError` if the numbers do not allow it.

        A run with zero or overflowing gradients is then recorded as failed, with this reason.
        """


Outcome = Reconstruction | NumericsError


class ManyAttack(Entry, ABC):
    """An attack that works on many gradients of one network architecture at once."""

    @abstractmethod
    def applies(self, chain: Chain, mode: str = "training") -> str | None:
        """See `Attack.applies`; `mode` is that of `AttackerView`."""

    @abstractmethod
    def run_many(self, views: Sequence[AttackerView], seeds: Sequence[int]) -> list[Outcome]:
        """Attack each view; a failed one gives its error and leaves the others as they are."""
