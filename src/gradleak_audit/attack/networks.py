"""Networks of an audit as run by clients and seen by attackers: chains, and all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.attacks.base import AttackerView, ManyAttack, Reconstruction
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.client.capture import capture
from gradleak.client.defences.base import Client, Defence
from gradleak.client.gradient_checks import check_gradient
from gradleak.client.shared_parameters import of_lock
from gradleak.errors import NumericsError
from gradleak.models.build import load, with_statistics, without_statistics
from gradleak.models.chain import Chain, LinearLayer, LinearSpec
from gradleak.models.initial import draw_key
from gradleak_audit.attack.attack_suite import MASKED, SEARCH, SECOND, Entry
from gradleak_audit.attack.module_inversion import ModuleView, invert
from gradleak_audit.read import client
from gradleak_audit.read.fx_graph import Reading
from gradleak_audit.read.layer_names import told
from gradleak_audit.read.preprocessing import Preprocessing

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Failed:
    """A run without reconstruction, and the reason."""

    reason: str


Answer = Reconstruction | Failed


@dataclass(frozen=True)
class Task:
    """Settings shared by all clients of an audit."""

    loss: str  # one of `gradleak.models.losses.LOSSES`
    mode: str  # training or evaluation
    low: float  # range of the network's input
    high: float
    device: torch.device  # for gradients and attacks


@dataclass(frozen=True)
class Shared:
    """A gradient under attack, and what the attacker knows of it."""

    gradient: Arrays
    labels: np.ndarray  # (K,), in the form the loss expects
    seed: int  # of the attack
    start: np.ndarray | None = None  # images (1, K, C, H, W) to start from


@dataclass(frozen=True)
class Network(ABC):
    """A network under audit; `draw` numbers its initializations."""

    task: Task

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Number of trainable parameters."""

    @property
    @abstractmethod
    def multiply_adds(self) -> int:
        """Multiply-adds of convolutions and fully connected layers in one image's forward pass."""

    @abstractmethod
    def reason(self, entry: Entry) -> str:
        """Reason why an attack does not apply; empty if it does."""

    @abstractmethod
    def answers(self, entry: Entry, draw: int, shared: Sequence[Shared]) -> list[Answer]:
        """Attack several gradients."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Range of the values that attackers reconstruct."""
        return self.task.low, self.task.high

    def _view(self, chain: Chain, weights: Arrays, shared: Shared, **more: Any) -> AttackerView:
        """Return the attacker's view of one gradient, with labels."""
        (low, high), task = self.bounds, self.task
        labels = tuple(int(label) for label in shared.labels)
        known = chain, weights, shared.gradient, labels, low, high, task.loss, len(labels)
        return AttackerView(*known, mode=task.mode, **more)

    @abstractmethod
    def _client(
        self, draw: int, images: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[Client, Arrays]:
        """Return a client, and its gradient before any defence."""

    def share(
        self, draw: int, images: np.ndarray, labels: np.ndarray, defence: Defence | None, seed: int
    ) -> Arrays:
        """Return the gradient that a client shares of a batch (K, C, H, W) with labels (K,).

        Raises `NumericsError` if the gradient is unusable.
        """
        owner, found = self._client(draw, images, labels, seed)
        return found if defence is None else defence.apply(owner, found, seed)


@dataclass(frozen=True)
class ChainNetwork(Network):
    """A chain with its weights by seed, as sent by the server."""

    chain: Chain
    weights: Callable[[int], Arrays]
    names: tuple[str, ...] = ()  # of its layers in the user's network
    before: Preprocessing | None = None  # preprocessing of the image, known to everyone

    @property
    def parameters(self) -> int:
        """See `Network`."""
        return self.chain.parameters

    @property
    def multiply_adds(self) -> int:
        """See `Network`; includes the two layers of a lock."""
        shapes = [part.shape for part in self.chain.parts]
        linear = [layer for layer in self.chain.layers if isinstance(layer, LinearLayer)]
        return (
            sum(s.channels * prod(s.kernel) * s.filters * s.positions for s in shapes)
            + sum(layer.inputs * layer.outputs for layer in linear)
            + sum(2 * lock.filters * lock.lock.key for lock in self.chain.locked)
        )

    def held(self, draw: int) -> Arrays:
        """Weights a client runs, including its key if there is a lock."""
        return self.weights(draw) | draw_key(self.chain, 0, draw)

    def _client(
        self, draw: int, images: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[Client, Arrays]:
        """See `Network`; the lock's part is not shared."""
        images = images if self.before is None else self.before(images)
        held = self.held(draw)
        try:
            found = self.gradient(held, images, labels, seed)
        except NumericsError as error:
            raise NumericsError(self.told(str(error))) from error
        return Client(self.chain, held, images, labels), of_lock(found, held, "withheld")

    def gradient(
        self, weights: Arrays, images: np.ndarray, labels: np.ndarray, seed: int
    ) -> Arrays:
        """Gradient for inputs of the first layer."""
        task = self.task
        return capture(
            self.chain,
            weights,
            images,
            labels,
            precision="float32",
            device=task.device,
            loss=task.loss,
            seed=seed,
            mode=task.mode,
        )

    def told(self, reason: str) -> str:
        """Replace layer names in a reason by the user's."""
        return told(reason, self.chain, self.names)

    @cached_property
    def attacked(self) -> Chain:
        """The chain as run by attackers: without dropout, whose mask they do not know."""
        specs = [
            replace(spec, dropout=0.0) if isinstance(spec, LinearSpec) else spec
            for spec in self.chain.specs
        ]
        return replace(self.chain, specs=tuple(specs))

    def reason(self, entry: Entry) -> str:
        """See `Network`."""
        return self.told(entry.reason(self.attacked, self.task.mode))

    @property
    def bounds(self) -> tuple[float, float]:
        """See `Network`; for the first layer's input."""
        own = super().bounds
        return own if self.before is None else self.before.bounds(*own)

    def view(self, draw: int, shared: Shared, **more: Any) -> AttackerView:
        """Attacker's view of one gradient; images are inputs of the first layer."""
        return self._view(self.attacked, self.weights(draw), shared, **more)

    def answers(self, entry: Entry, draw: int, shared: Sequence[Shared]) -> list[Answer]:
        """See `Network`."""
        views = []
        for one in shared:
            start = one.start if entry.id == SECOND else None
            if start is not None and self.before is not None:
                start = self.before(start)
            views.append(self.view(draw, one, starts=start))
        seeds = [one.seed for one in shared]
        attack = entry.attack(self.chain, self.task.device.type)
        found: list[Reconstruction | NumericsError | Failed] = []
        if entry.id == MASKED:
            assert isinstance(attack, InvertingGradients)
            found += invert(attack, self._masked(draw, views), seeds)
        elif isinstance(attack, ManyAttack):
            found += attack.run_many(views, seeds)
        else:
            for view, seed in zip(views, seeds, strict=True):
                try:
                    found.append(attack.run(view, seed))
                except NumericsError as error:
                    found.append(error)
                except np.linalg.LinAlgError as error:
                    found.append(Failed(f"Linear algebra gave up: {error}."))
        return [self._judged(one) for one in found]

    def _judged(self, found: Reconstruction | NumericsError | Failed) -> Answer:
        if isinstance(found, Failed):
            return found
        answer = _judged(found)
        if isinstance(answer, Failed):
            return Failed(self.told(answer.reason))
        if self.before is not None:
            return replace(answer, images=self.before.undo(answer.images))
        return answer

    def _masked(self, draw: int, views: Sequence[AttackerView]) -> list[ModuleView]:
        """Views with masks that exclude zero columns of the first fully connected layer."""
        weights = self.weights(draw)
        if self.task.mode == "training":
            held = without_statistics(weights)
        else:
            held = with_statistics(self.chain, weights)
        module = load(self.attacked, held, torch.float32).requires_grad_(True)
        name = f"{self.chain.layers[len(self.chain.convolutions)].name}.weight"
        gradients = [view.gradients[name] for view in views]
        left = [np.broadcast_to(g.any(axis=0), g.shape).astype(np.float32) for g in gradients]
        return [ModuleView(module, v, {name: one}) for v, one in zip(views, left, strict=True)]


@dataclass(frozen=True)
class ModuleNetwork(Network):
    """A network that is not a chain, by seed."""

    reading: Reading
    module: Callable[[int], nn.Module]
    why_no_chain: str

    @cached_property
    def layerless(self) -> Chain:
        """A chain without layers that gives views and messages a name and a size."""
        return Chain(type(self.module(0)).__name__, self.reading.input, ())

    @property
    def parameters(self) -> int:
        """See `Network`."""
        return sum(value.numel() for value in self.module(0).parameters())

    @property
    def multiply_adds(self) -> int:
        """See `Network`; counts readable layers only."""
        return self.reading.multiply_adds

    def _client(
        self, draw: int, images: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[Client, Arrays]:
        """See `Network`; defences here act on gradients only."""
        module, task = self.module(draw), self.task
        # Keep dropout from advancing the global random state.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = client.gradient(module.to(task.device), images, labels, task.loss, task.mode)
        check_gradient(self.layerless, found)
        return Client(self.layerless, {}, images, labels), found

    def reason(self, entry: Entry) -> str:
        """See `Network`."""
        if entry.id == SEARCH:
            return ""
        return f"The network is no chain of layers: {self.why_no_chain}"

    def answers(self, entry: Entry, draw: int, shared: Sequence[Shared]) -> list[Answer]:
        """See `Network`."""
        attack = entry.attack(None, self.task.device.type)
        assert isinstance(attack, InvertingGradients)
        views = [
            ModuleView(self.module(draw), self._view(self.layerless, {}, one)) for one in shared
        ]
        return [_judged(one) for one in invert(attack, views, [one.seed for one in shared])]


def _judged(found: Reconstruction | NumericsError) -> Answer:
    """Return a reconstruction, or the reason why the attack considers it failed."""
    if isinstance(found, NumericsError):
        return Failed(str(found))
    if found.failure:
        return Failed(found.failure)
    if not np.all(np.isfinite(found.images)):
        return Failed("The reconstruction holds NaN or infinity.")
    return found


def signed(labels: np.ndarray, margin: bool) -> np.ndarray:
    """Labels as the loss expects them: −1 or 1 by parity for a margin loss."""
    return 2 * (labels % 2) - 1 if margin else labels
