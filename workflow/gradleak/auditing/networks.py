"""Networks of an audit as clients run them and attackers see them: chains, and all others."""

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
from gradleak.attacks.inverting import InvertingGradients
from gradleak.auditing import client
from gradleak.auditing.generic import ModuleView, invert
from gradleak.auditing.menu import MASKED, SEARCH, SECOND, Entry
from gradleak.auditing.preprocessing import Preprocessing
from gradleak.auditing.reading import Reading
from gradleak.auditing.telling import told
from gradleak.defences.base import Client, Defence
from gradleak.errors import NumericsError
from gradleak.gradients import capture
from gradleak.models.build import load, with_statistics, without_statistics
from gradleak.models.chain import Chain, LinearLayer, LinearSpec
from gradleak.models.initial import draw_key
from gradleak.sharing import of_lock
from gradleak.usable import check_gradient

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Failed:
    """A run without an answer, and why."""

    reason: str


Answer = Reconstruction | Failed


@dataclass(frozen=True)
class Task:
    """What all clients of an audit do."""

    loss: str  # one of `gradleak.losses.LOSSES`
    mode: str  # training or evaluation
    low: float  # range of the network's input
    high: float
    device: torch.device  # where gradients and searches are computed


@dataclass(frozen=True)
class Shared:
    """A gradient under attack, and what the attacker is told of it."""

    gradient: Arrays
    labels: np.ndarray  # (K,), as the loss takes them
    seed: int  # of the attack's own choices
    start: np.ndarray | None = None  # images (1, K, C, H, W) that an attack may begin with


@dataclass(frozen=True)
class Network(ABC):
    """A network of an audit; `draw` numbers its weights."""

    task: Task

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Numbers that are trained."""

    @property
    @abstractmethod
    def multiply_adds(self) -> int:
        """Of one image's pass forward, in convolutions and fully connected layers."""

    @abstractmethod
    def reason(self, entry: Entry) -> str:
        """Why an attack does not apply; empty if it does."""

    @abstractmethod
    def answers(self, entry: Entry, draw: int, shared: Sequence[Shared]) -> list[Answer]:
        """Answers of an attack to several gradients."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Range of what attackers look for."""
        return self.task.low, self.task.high

    def _view(self, chain: Chain, weights: Arrays, shared: Shared, **more: Any) -> AttackerView:
        """What an attacker knows of one gradient; labels are granted."""
        (low, high), task = self.bounds, self.task
        labels = tuple(int(label) for label in shared.labels)
        known = chain, weights, shared.gradient, labels, low, high, task.loss, len(labels)
        return AttackerView(*known, mode=task.mode, **more)

    @abstractmethod
    def _client(
        self, draw: int, images: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[Client, Arrays]:
        """A client, and its gradient before any defence."""

    def share(
        self, draw: int, images: np.ndarray, labels: np.ndarray, defence: Defence | None, seed: int
    ) -> Arrays:
        """What a client shares of a batch (K, C, H, W) with labels (K,).

        A `NumericsError` if the gradient is of no use to anybody.
        """
        owner, found = self._client(draw, images, labels, seed)
        return found if defence is None else defence.apply(owner, found, seed)


@dataclass(frozen=True)
class ChainNetwork(Network):
    """A chain and its weights by draw, as the server sends them."""

    chain: Chain
    weights: Callable[[int], Arrays]
    names: tuple[str, ...] = ()  # of its layers, as the user gave them
    before: Preprocessing | None = None  # what it does to an image first, known to everybody

    @property
    def parameters(self) -> int:
        """See `Network`."""
        return self.chain.parameters

    @property
    def multiply_adds(self) -> int:
        """See `Network`; a lock's two layers count as well."""
        shapes = [part.shape for part in self.chain.parts]
        linear = [layer for layer in self.chain.layers if isinstance(layer, LinearLayer)]
        return (
            sum(s.channels * prod(s.kernel) * s.filters * s.positions for s in shapes)
            + sum(layer.inputs * layer.outputs for layer in linear)
            + sum(2 * lock.filters * lock.lock.key for lock in self.chain.locked)
        )

    def held(self, draw: int) -> Arrays:
        """Weights that a client runs it with: with its key, where there is a lock."""
        return self.weights(draw) | draw_key(self.chain, 0, draw)

    def _client(
        self, draw: int, images: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[Client, Arrays]:
        """See `Network`; nothing of a lock is shared."""
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
        """Gradient under some weights, of what the first layer takes."""
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
        """A reason in which layers go by the names that the user gave them."""
        return told(reason, self.chain, self.names)

    @cached_property
    def attacked(self) -> Chain:
        """The chain as attackers run it: without dropout, whose choices they do not know."""
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
        """See `Network`; of what the first layer takes."""
        own = super().bounds
        return own if self.before is None else self.before.bounds(*own)

    def view(self, draw: int, shared: Shared, **more: Any) -> AttackerView:
        """What an attacker knows of one gradient; images are what the first layer takes."""
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
        """Views that leave out the columns of zeros in the first fully connected layer."""
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
    """A network that is no chain, by draw."""

    reading: Reading
    module: Callable[[int], nn.Module]
    why_no_chain: str

    @cached_property
    def layerless(self) -> Chain:
        """A chain without layers, that gives views and messages a name and a size."""
        return Chain(type(self.module(0)).__name__, self.reading.input, ())

    @property
    def parameters(self) -> int:
        """See `Network`."""
        return sum(value.numel() for value in self.module(0).parameters())

    @property
    def multiply_adds(self) -> int:
        """See `Network`; of readable layers alone."""
        return self.reading.multiply_adds

    def _client(
        self, draw: int, images: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[Client, Arrays]:
        """See `Network`; defences here look at gradients alone."""
        module, task = self.module(draw), self.task
        # Dropout's seed must not reach what else is drawn.
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
    """An answer that the attack itself does not hold for a failure, or why there is none."""
    if isinstance(found, NumericsError):
        return Failed(str(found))
    if found.failure:
        return Failed(found.failure)
    if not np.all(np.isfinite(found.images)):
        return Failed("The reconstruction holds NaN or infinity.")
    return found


def signed(labels: np.ndarray, margin: bool) -> np.ndarray:
    """Labels as the loss takes them: −1 or 1 by parity for a loss of a margin."""
    return 2 * (labels % 2) - 1 if margin else labels
