"""Networks of an audit as clients run them and attackers see them: chains, and all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Protocol

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
from gradleak.models.chain import Chain, ConvLayer, LinearSpec
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
    """What all clients of an audit do.

    Attributes
    ----------
    loss, mode
        One of `gradleak.losses.LOSSES`; ``training`` or ``evaluation``.
    low, high
        Range of the network's input.
    device
        Where gradients and searches are computed.
    """

    loss: str
    mode: str
    low: float
    high: float
    device: torch.device


class Network(Protocol):
    """A network of an audit; `draw` numbers its weights."""

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""

    @property
    def multiply_adds(self) -> int:
        """Of one image's pass forward, in convolutions and fully connected layers."""

    def share(
        self,
        draw: int,
        images: np.ndarray,
        labels: np.ndarray,
        defence: Defence | None,
        seed: int,
    ) -> Arrays:
        """What a client shares of a batch (K, C, H, W) with labels (K,).

        Raises
        ------
        NumericsError
            If the gradient is of no use to anybody.
        """

    def reason(self, entry: Entry) -> str:
        """Why an attack does not apply; empty if it does."""

    def answers(
        self,
        entry: Entry,
        draw: int,
        shared: Sequence[Arrays],
        labels: Sequence[np.ndarray],
        seeds: Sequence[int],
        starts: Sequence[np.ndarray | None],
    ) -> list[Answer]:
        """Answers of an attack to several gradients; `starts` (1, K, C, H, W), if it takes any."""


@dataclass(frozen=True)
class ChainNetwork:
    """A chain, its weights by draw as the server sends them, and what its clients do.

    `names` are those that the user gave to its layers; `before` is what the network does to an
    image first, and known to everybody.
    """

    chain: Chain
    weights: Callable[[int], Arrays]
    task: Task
    names: tuple[str, ...] = ()
    before: Preprocessing | None = None

    @property
    def parameters(self) -> int:
        """See `Network`."""
        return self.chain.parameters

    @property
    def multiply_adds(self) -> int:
        """See `Network`; a lock's two layers count as well."""
        convolutions = sum(
            _filter(part.shape) * part.shape.filters * part.shape.positions
            for part in self.chain.parts
        )
        locks = sum(2 * lock.filters * lock.lock.key for lock in self.chain.locked)
        linear = sum(
            layer.inputs * layer.outputs
            for layer in self.chain.layers
            if not isinstance(layer, ConvLayer)
        )
        return convolutions + locks + linear

    def held(self, draw: int) -> Arrays:
        """Weights that a client runs it with: with its key, where there is a lock."""
        return self.weights(draw) | draw_key(self.chain, 0, draw)

    def share(
        self,
        draw: int,
        images: np.ndarray,
        labels: np.ndarray,
        defence: Defence | None,
        seed: int,
    ) -> Arrays:
        """See `Network`; nothing of a lock is shared."""
        images = images if self.before is None else self.before(images)
        held, task = self.held(draw), self.task
        try:
            found = capture(
                self.chain,
                held,
                images,
                labels,
                precision="float32",
                device=task.device,
                loss=task.loss,
                seed=seed,
                mode=task.mode,
            )
        except NumericsError as error:
            raise NumericsError(told(str(error), self.chain, self.names)) from error
        found = of_lock(found, held, "withheld")
        if defence is None:
            return found
        return defence.apply(Client(self.chain, held, images, labels), found, seed)

    @cached_property
    def attacked(self) -> Chain:
        """The chain as attackers run it: without dropout, whose choices they do not know."""
        specs = [
            replace(spec, dropout=0.0) if isinstance(spec, LinearSpec) else spec
            for spec in self.chain.specs
        ]
        return replace(self.chain, specs=tuple(specs))

    def reason(self, entry: Entry) -> str:
        """See `Network`; layers go by the names that the user gave them."""
        return told(entry.reason(self.attacked, self.task.mode), self.chain, self.names)

    def view(self, draw: int, shared: Arrays, labels: np.ndarray, **more: Any) -> AttackerView:
        """What an attacker knows of one gradient; labels are granted.

        Images are what the first layer takes.
        """
        low, high = self.task.low, self.task.high
        if self.before is not None:
            low, high = self.before.bounds(low, high)
        return AttackerView(
            self.attacked,
            self.weights(draw),
            shared,
            tuple(int(label) for label in labels),
            low,
            high,
            self.task.loss,
            len(labels),
            mode=self.task.mode,
            **more,
        )

    def answers(
        self,
        entry: Entry,
        draw: int,
        shared: Sequence[Arrays],
        labels: Sequence[np.ndarray],
        seeds: Sequence[int],
        starts: Sequence[np.ndarray | None],
    ) -> list[Answer]:
        """See `Network`."""
        if self.before is not None:
            starts = [None if start is None else self.before(start) for start in starts]
        views = [
            self.view(draw, gradient, own, starts=start if entry.id == SECOND else None)
            for gradient, own, start in zip(shared, labels, starts, strict=True)
        ]
        attack = entry.attack(self.chain, self.task.device.type)
        if entry.id == MASKED:
            assert isinstance(attack, InvertingGradients)
            return [self._judged(one) for one in invert(attack, self._masked(draw, views), seeds)]
        if isinstance(attack, ManyAttack):
            return [self._judged(one) for one in attack.run_many(views, seeds)]
        out: list[Answer] = []
        for view, seed in zip(views, seeds, strict=True):
            try:
                out.append(self._judged(attack.run(view, seed)))
            except NumericsError as error:
                out.append(self._judged(error))
            except np.linalg.LinAlgError as error:
                out.append(Failed(f"Linear algebra gave up: {error}."))
        return out

    def _judged(self, found: Reconstruction | NumericsError) -> Answer:
        answer = _judged(found)
        if isinstance(answer, Failed):
            return Failed(told(answer.reason, self.chain, self.names))
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
        return [
            ModuleView(
                module,
                self.chain.input,
                view.gradients,
                view.labels or (),
                view.low,
                view.high,
                view.loss,
                view.mode,
                {name: _columns(view.gradients[name])},
            )
            for view in views
        ]


def _columns(gradient: np.ndarray) -> np.ndarray:
    """1 in columns that are not zero everywhere, 0 in the others."""
    return np.broadcast_to(gradient.any(axis=0), gradient.shape).astype(np.float32)


@dataclass(frozen=True)
class ModuleNetwork:
    """A network that is no chain, by draw, and why it is none."""

    reading: Reading
    module: Callable[[int], nn.Module]
    why_no_chain: str
    task: Task

    @property
    def parameters(self) -> int:
        """See `Network`."""
        return sum(value.numel() for value in self.module(0).parameters())

    @property
    def multiply_adds(self) -> int:
        """See `Network`."""
        return multiply_adds(self.reading)

    def share(
        self,
        draw: int,
        images: np.ndarray,
        labels: np.ndarray,
        defence: Defence | None,
        seed: int,
    ) -> Arrays:
        """See `Network`; defences here look at gradients alone."""
        module, task = self.module(draw), self.task
        # Dropout's seed must not reach what else is drawn.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = client.gradient(module.to(task.device), images, labels, task.loss, task.mode)
        nameless = Chain(type(module).__name__, self.reading.input, ())
        check_gradient(nameless, found)
        if defence is None:
            return found
        return defence.apply(Client(nameless, {}, images, labels), found, seed)

    def reason(self, entry: Entry) -> str:
        """See `Network`."""
        if entry.id == SEARCH:
            return ""
        return f"The network is no chain of layers: {self.why_no_chain}"

    def answers(
        self,
        entry: Entry,
        draw: int,
        shared: Sequence[Arrays],
        labels: Sequence[np.ndarray],
        seeds: Sequence[int],
        starts: Sequence[np.ndarray | None],
    ) -> list[Answer]:
        """See `Network`."""
        attack = entry.attack(None, self.task.device.type)
        assert isinstance(attack, InvertingGradients)
        views = [
            ModuleView(
                self.module(draw),
                self.reading.input,
                gradient,
                tuple(int(label) for label in own),
                self.task.low,
                self.task.high,
                self.task.loss,
                self.task.mode,
            )
            for gradient, own in zip(shared, labels, strict=True)
        ]
        return [_judged(one) for one in invert(attack, views, seeds)]


def multiply_adds(reading: Reading) -> int:
    """Of one image's pass forward through readable layers with weights."""
    total = 0
    for layer in reading.layers:
        if layer.is_linear:
            places = 1 if layer.shape is None else prod(layer.shape.output)
            total += layer.weights * places
    return total


def _filter(shape: Any) -> int:
    """Weights of one filter."""
    return int(shape.channels * shape.kernel[0] * shape.kernel[1])


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
