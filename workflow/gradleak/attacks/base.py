"""What an attack knows, answers, and declares of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gradleak.errors import NumericsError
from gradleak.models.chain import Chain
from gradleak.section import Method

if TYPE_CHECKING:
    from gradleak.attacks.run import Results
    from gradleak.servers.secret import Secret


@dataclass(frozen=True)
class AttackerView:
    """All that an attacker knows: never the image."""

    chain: Chain  # architecture
    weights: Mapping[str, np.ndarray]  # {parameter: array} that the server sent
    gradients: Mapping[str, np.ndarray]  # {parameter: array} that the client shared
    # True classes (−1 or 1 for a loss of a margin) if they were granted, else None.
    labels: tuple[int, ...] | None
    low: float  # range of the network's input
    high: float
    loss: str = "cross_entropy"  # one of `gradleak.losses.LOSSES`
    batch: int = 1  # K, the number of images whose gradients were averaged
    # Images (S, K, C, H, W) that an optimiser is told to start from, None where it draws them.
    starts: np.ndarray | None = None
    secret: Secret | None = None  # what the server kept to itself, if it is a malicious one
    fingerprint: str = ""  # of the weights that the gradient was taken with
    mode: str = "training"  # how the client's norms and dropout ran, or "evaluation"
    # Keys of locked layers {layer}_key, where they were granted.
    keys: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def label(self) -> int | None:
        """The label if it was granted and is one and the same for the whole batch, else None."""
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
    free: int = 0  # unknowns that no equation of the layer fixes: at least so many, by its sizes


@dataclass(frozen=True)
class Reconstruction:
    """One answer of an attack to one shared gradient."""

    # (K', C, H, W) in the range of the network's input; K' = K, or 1 where the attack takes a
    # batch for one image.
    images: np.ndarray
    stop: str  # why the attack stopped
    layers: tuple[LayerFacts, ...] = ()  # last layer first
    label: int | None = None  # that the attack used or found
    # Input (n,) of the first fully connected layer as the attack found it, where it did.
    fc_input: np.ndarray | None = None
    kind: str = "answer"  # or "twin", "start 3"
    # Why the attacker holds the answer for a failure, judged without the original; empty if not.
    failure: str = ""
    loss: float = float("nan")  # final value of the attack's objective, NaN where it has none
    evaluations: int = 0  # gradients of the network that were computed, 0 for a closed form
    trace: tuple[float, ...] = ()  # objective at about 100 moments, for an iterative attack
    others: tuple[Reconstruction, ...] = ()  # further answers: twin data, other starts
    # Class of each image (K',) and how many images of the batch it is the mean of, where the
    # attack answers by class; else empty.
    classes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    # Whether it answers for these classes alone by its nature, not because others were lost.
    partial: bool = False

    @property
    def image(self) -> np.ndarray:
        """The first image (C, H, W)."""
        return self.images[0]


class Entry(Method):
    """An entry of ``attacks`` in config.yaml: settings as fields, needs as class attributes.

    A field may be `gradleak.section.Hidden`: Python code sets it, config.yaml does not.
    """

    # Searches step by step: on `device`, with a second thread for large batches, for hours.
    searches: ClassVar[bool] = False
    # Reads the secret of a server of the same method, and compares no gradients itself.
    reads_secret: ClassVar[bool] = False
    # Needs the inverse of every activation: networks without one are refused at load.
    inverts_activations: ClassVar[bool] = False
    # Gives twin data beside its answer.
    gives_twins: ClassVar[bool] = False
    # Is made from the reconstructions of other attacks, without a gradient of its own.
    postprocesses: ClassVar[bool] = False

    @property
    def needs_labels(self) -> bool:
        """Whether labels must be granted, or told by a single image's gradient."""
        return False

    @property
    def made_from(self) -> list[str]:
        """Ids of the attacks whose reconstructions it needs: its setting `of`."""
        of = getattr(self, "of", None)
        return [] if of is None else [of] if isinstance(of, str) else list(of)

    def contradiction(self) -> str | None:
        """Return why config.yaml must not combine these settings, or None."""
        return None


class Attack(Entry, ABC):
    """An attack on one gradient at a time."""

    @abstractmethod
    def applies(self, chain: Chain) -> str | None:
        """Return why the attack cannot be run on `chain`, one sentence, or None if it can."""

    @abstractmethod
    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """Reconstruct one image.

        Raises
        ------
        NumericsError
            If the numbers do not allow it (zero or overflowing gradients). The run is then
            recorded as failed with this reason.
        """


class ManyAttack(Entry, ABC):
    """An attack that works on many gradients of one network architecture at once."""

    @abstractmethod
    def applies(self, chain: Chain, mode: str = "training") -> str | None:
        """See `Attack.applies`; `mode` is that of `AttackerView`."""

    @abstractmethod
    def run_many(
        self, views: Sequence[AttackerView], seeds: Sequence[int]
    ) -> list[Reconstruction | NumericsError]:
        """Answer each view, or say why not; one view's failure leaves the others as they are."""


class Postprocess(Entry, ABC):
    """A reconstruction that is made from those of other attacks."""

    postprocesses = True

    @abstractmethod
    def make(self, paths: Sequence[str]) -> Results:
        """Make reconstructions from the files of the attacks named by `of`, in their order."""
