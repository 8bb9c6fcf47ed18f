"""Networks of an audit as run by clients and seen by attackers: chains, and all others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.attacks.base import AttackerView, ManyAttack, Reconstruction
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.engine.module_gradients import ModuleView
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.attacks.optimization.module_inversion import invert
from gradleak.attacks.optimization.optimization_attack import GRAY, Search
from gradleak.attacks.runner import run_one
from gradleak.client.capture import capture
from gradleak.client.defences.base import Client, Defence
from gradleak.client.gradient_checks import check_gradient
from gradleak.client.shared_parameters import of_lock
from gradleak.errors import GradleakError, NotApplicable, NumericsError
from gradleak.library.analytic import invert_first
from gradleak.library.network import OwnNetwork
from gradleak.models.build import load, with_statistics, without_statistics
from gradleak.models.chain import Chain, LinearLayer, LinearSpec
from gradleak.models.initial import draw_key
from gradleak.reading import gradients
from gradleak.reading.fx_graph import Reading
from gradleak.reading.layer_names import told
from gradleak.reading.preprocessing import Preprocessing
from gradleak_audit.attack.attack_suite import ANALYTIC, DLG, MASKED, SEARCH, SECOND, Entry
from gradleak_audit.attack.substitutes import substituted

# Mean values of starts, as shares of the input range, of networks that may branch on values.
LEVELS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
Arrays = dict[str, np.ndarray]
# A reconstruction, or the reason why there is none.
Answer = Reconstruction | str


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
class _Network:
    """A network under audit; `draw` numbers its initializations."""

    task: Task

    @property
    def bounds(self) -> tuple[float, float]:
        """Range of the values that attackers reconstruct."""
        return self.task.low, self.task.high

    def _view(self, chain: Chain, weights: Arrays, shared: Shared, **more: Any) -> AttackerView:
        (low, high), task = self.bounds, self.task
        labels = tuple(int(label) for label in shared.labels)
        known = chain, weights, shared.gradient, labels, low, high, task.loss, len(labels)
        return AttackerView(*known, mode=task.mode, **more)


@dataclass(frozen=True)
class ChainNetwork(_Network):
    """A chain with its weights by seed, as sent by the server."""

    chain: Chain
    weights: Callable[[int], Arrays]
    names: tuple[str, ...] = ()  # of its layers in the user's network
    before: Preprocessing | None = None  # preprocessing of the image, known to everyone

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return self.chain.parameters

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one image's forward pass, with the two layers of a lock."""
        sizes = [prod(part.size) * part.shape.positions for part in self.chain.parts]
        linear = [layer for layer in self.chain.layers if isinstance(layer, LinearLayer)]
        sizes += [layer.inputs * layer.outputs for layer in linear]
        return sum(sizes) + sum(2 * lock.filters * lock.lock.key for lock in self.chain.locked)

    def held(self, draw: int) -> Arrays:
        """Weights a client runs, including its key if there is a lock."""
        return self.weights(draw) | draw_key(self.chain, 0, draw)

    def share(
        self, draw: int, images: np.ndarray, labels: np.ndarray, defence: Defence | None, seed: int
    ) -> Arrays:
        """Return the gradient that a client shares, less a lock's; `NumericsError` if unusable."""
        images = images if self.before is None else self.before(images)
        held = self.held(draw)
        try:
            found = self.gradient(held, images, labels, seed)
        except NumericsError as error:
            raise NumericsError(self.told(str(error))) from error
        owner, shared = Client(self.chain, held, images, labels), of_lock(found, held, "withheld")
        return shared if defence is None else defence.apply(owner, shared, seed)

    def gradient(
        self, weights: Arrays, images: np.ndarray, labels: np.ndarray, seed: int
    ) -> Arrays:
        """Gradient for inputs of the first layer."""
        task, given = self.task, (self.chain, weights, images, labels)
        how: dict[str, Any] = {"loss": task.loss, "mode": task.mode, "device": task.device}
        return capture(*given, precision="float32", seed=seed, **how)

    def told(self, reason: str) -> str:
        """Replace layer names in a reason by the user's."""
        return told(reason, self.chain, self.names)

    @cached_property
    def attacked(self) -> Chain:
        """The chain as run by attackers: without dropout, whose mask they do not know."""
        specs = (
            replace(s, dropout=0.0) if isinstance(s, LinearSpec) else s for s in self.chain.specs
        )
        return replace(self.chain, specs=tuple(specs))

    def reason(self, entry: Entry) -> str:
        """Reason why an attack does not apply; empty if it does."""
        return self.told(entry.reason(self.attacked, self.task.mode))

    @property
    def bounds(self) -> tuple[float, float]:
        """Range of the first layer's input."""
        own = super().bounds
        return own if self.before is None else self.before.bounds(*own)

    def view(self, draw: int, shared: Shared, **more: Any) -> AttackerView:
        """Attacker's view of one gradient; images are inputs of the first layer."""
        return self._view(self.attacked, self.weights(draw), shared, **more)

    def answers(self, entry: Entry, draw: int, shared: Sequence[Shared]) -> list[Answer]:
        """Attack several gradients."""
        views, seeds = [], [one.seed for one in shared]
        for one in shared:
            start = one.start if entry.id == SECOND else None
            if start is not None and self.before is not None:
                start = self.before(start)
            views.append(self.view(draw, one, starts=start))
        attack = entry.attack(self.chain, self.task.device.type)
        found: Sequence[Reconstruction | NumericsError]
        if entry.id == MASKED:
            assert isinstance(attack, InvertingGradients)
            found = invert(attack, self._masked(draw, views), seeds)
        elif isinstance(attack, ManyAttack):
            found = attack.run_many(views, seeds)
        else:
            found = [run_one(attack, view, seed) for view, seed in zip(views, seeds, strict=True)]
        own = map(_judged, found)
        answers: list[Answer] = [self.told(x) if isinstance(x, str) else x for x in own]
        if self.before is None:
            return answers
        undo = self.before.undo
        return [
            one if isinstance(one, str) else replace(one, images=undo(one.images))
            for one in answers
        ]

    def _masked(self, draw: int, views: Sequence[AttackerView]) -> list[ModuleView]:
        """Views with masks that exclude zero columns of the first fully connected layer."""
        held = with_statistics(self.chain, self.weights(draw))
        if self.task.mode == "training":
            held = without_statistics(held)
        module = load(self.attacked, held, torch.float32).requires_grad_(True)
        name = f"{self.chain.layers[len(self.chain.convolutions)].name}.weight"
        gradients = [view.gradients[name] for view in views]
        left = [np.broadcast_to(g.any(axis=0), g.shape).astype(np.float32) for g in gradients]
        return [ModuleView(module, v, {name: one}) for v, one in zip(views, left, strict=True)]


@dataclass(frozen=True)
class ModuleNetwork(_Network):
    """A network that is not a chain, by seed."""

    reading: Reading
    module: Callable[[int], nn.Module]

    @cached_property
    def layerless(self) -> Chain:
        """A chain without layers that gives views and messages a name and a size."""
        return Chain(type(self.module(0)).__name__, self.reading.input, ())

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(value.numel() for value in self.module(0).parameters())

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of convolutions and fully connected layers for one image."""
        return self.reading.multiply_adds

    def share(
        self, draw: int, images: np.ndarray, labels: np.ndarray, defence: Defence | None, seed: int
    ) -> Arrays:
        """Return the gradient that a client shares, as of `ChainNetwork`."""
        module, task = self.module(draw), self.task
        # Keep dropout from advancing the global random state.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = gradients.gradient(module.to(task.device), images, labels, task.loss, task.mode)
        check_gradient(self.layerless, found)
        owner = Client(self.layerless, {}, images, labels)
        return found if defence is None else defence.apply(owner, found, seed)

    def reason(self, entry: Entry) -> str:
        """Reason why an attack does not apply; empty if it does."""
        if entry.id == ANALYTIC:
            return self.unread
        chained = "The network is not a chain of layers."
        return self.unsearched if entry.id in (SEARCH, DLG) else chained

    @cached_property
    def unread(self) -> str:
        """Reason why no closed form reads its first layer, by trying it; empty if one may."""
        images = np.random.default_rng(0).uniform(*self.bounds, (1, *self.reading.input))
        labels = np.ones(1, np.int64)
        try:
            shared = self.share(0, images.astype(np.float32), labels, None, 0)
            self._first(0, Shared(shared, labels, 0))
        except NumericsError:
            return ""  # of this gradient
        except GradleakError as error:
            return f"{str(error).partition(';')[0].rstrip('.')}."
        return ""

    def _first(self, draw: int, shared: Shared) -> Reconstruction:
        module, task = self.module(draw), self.task
        own: dict[str, Any] = {"classes": self.reading.classes, "loss": task.loss}
        own |= {"mode": task.mode, "reading": None, "converted": None, "why_no_chain": ""}
        network = OwnNetwork(module.to(task.device), self.reading.input, **own)
        labels = tuple(int(label) for label in shared.labels)
        return invert_first(network, shared.gradient, labels, len(labels))

    @cached_property
    def unsearched(self) -> str:
        """Reason why no search runs on it, by one step of one; empty if it does."""
        size = gradients.PASSED, *self.reading.input
        images = np.random.default_rng(0).uniform(*self.bounds, size).astype(np.float32)
        labels = np.ones(len(images), np.int64)
        step = Dlg(iterations=1, precision="float32", device=self.task.device.type)
        try:
            own = Shared(self.share(0, images, labels, None, 0), labels, 0)
            invert(step, [ModuleView(self.module(0), self._view(self.layerless, {}, own))], [0])
        except (NotApplicable, NumericsError) as error:
            return str(error) if isinstance(error, NotApplicable) else ""
        return ""

    def substituted(self, images: np.ndarray, labels: np.ndarray) -> str:
        """Say which operations attacks replace, as compared on a client's inputs; empty if none."""
        if self.unsearched:
            return ""
        module = self.module(0).to(self.task.device)
        return substituted(module, images, labels, self.task.loss, self.task.mode)

    def answers(self, entry: Entry, draw: int, shared: Sequence[Shared]) -> list[Answer]:
        """Attack several gradients."""
        if entry.id == ANALYTIC:
            return [self._read(draw, one) for one in shared]
        attack = entry.attack(None, self.task.device.type)
        assert isinstance(attack, Search)
        module, views = self.module(draw), []
        for one in shared:
            start = self._same_branch(module, one) if self.reading.untraced else None
            views.append(ModuleView(module, self._view(self.layerless, {}, one, starts=start)))
        found = invert(attack, views, [x.seed for x in shared])
        return [_judged(one) for one in found]

    def _read(self, draw: int, shared: Shared) -> Answer:
        try:
            return _judged(self._first(draw, shared))
        except GradleakError as error:
            return str(error)

    def _same_branch(self, module: nn.Module, shared: Shared) -> np.ndarray | None:
        """Gray images (1, K, C, H, W) with gradients of the same parameters as the shared one.

        No search leaves a branch that the client did not take for the one that it took, since
        nothing tells it where that begins. Of the grays of `LEVELS` that take it, the middle one is
        the farthest from where it ends; None if all or none do.
        """
        task, (low, high), found = self.task, self.bounds, []
        shape = len(shared.labels), *self.reading.input
        used = {name: bool(value.any()) for name, value in shared.gradient.items()}
        for level in LEVELS:
            noise = np.random.default_rng((shared.seed, 0)).normal(level, GRAY, shape)
            images = (low + (high - low) * np.clip(noise, 0.0, 1.0)).astype(np.float32)
            with torch.random.fork_rng(devices=[]):
                given = images, shared.labels, task.loss, task.mode
                own = gradients.gradient(module.to(task.device), *given)
            if {name: bool(value.any()) for name, value in own.items()} == used:
                found.append(images[None])
        return found[len(found) // 2] if 0 < len(found) < len(LEVELS) else None


Network = ChainNetwork | ModuleNetwork


def _judged(found: Reconstruction | NumericsError) -> Answer:
    """Return a reconstruction, or the reason why the attack considers it failed."""
    if isinstance(found, NumericsError):
        return str(found)
    if not found.failure and not np.all(np.isfinite(found.images)):
        return "The reconstruction holds NaN or infinity."
    return found.failure or found
