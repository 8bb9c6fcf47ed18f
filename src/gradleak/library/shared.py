"""A gradient or an update that a client shared, beside the network it was computed with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from gradleak.client.local_training import Recipe, local_steps
from gradleak.errors import ConfigError, NumericsError
from gradleak.library.network import Arrays, OwnNetwork, as_tensor
from gradleak.library.tensors import Gradient, named_gradient
from gradleak.library.update import Update
from gradleak.models.losses import OF_CLASSES
from gradleak.reading.gradients import gradient, passing

# Images of noise over which the network's mean softmax is taken.
NOISE = 64


@dataclass(frozen=True)
class Replay:
    """A client's local training on other images, as arrays by parameter."""

    change: Arrays  # weights before less weights after
    first: Arrays  # gradient of the first step
    mean: Arrays  # the change as a mean gradient

    def ratio(self, name: str) -> float:
        """<first, mean> / ‖mean‖² of one parameter; 0 where the mean is 0."""
        first, mean = (one[name].astype(np.float64).ravel() for one in (self.first, self.mean))
        return float(first @ mean / size) if (size := mean @ mean) else 0.0


@dataclass(frozen=True)
class Shared:
    """A gradient, or an update of several local steps, and its network with the weights sent."""

    network: OwnNetwork
    given: Mapping[str, np.ndarray]  # a gradient, or weights before less weights after
    update: Update | None  # of several steps; None for a gradient
    recipe: Recipe | None = None  # of an update, of one step too

    @cached_property
    def gradient(self) -> Mapping[str, np.ndarray]:
        """The gradient, or the mean gradient of an update; `NotApplicable` for Adam's."""
        return self.given if self.update is None else self.update.mean_gradient()

    def replay(self, images: np.ndarray, labels: np.ndarray) -> Replay:
        """Repeat the client's local training on images (K, C, H, W) with labels (K,)."""
        module, update = self.network.module, self.update
        assert update is not None
        gradients: list[list[torch.Tensor]] = []
        truth = torch.from_numpy(labels).to(next(module.parameters()).device)
        before = dict(module.named_parameters())
        with passing(module, self.network.mode):
            after = local_steps(
                module,
                before,
                as_tensor(images, module),
                truth,
                update.recipe,
                loss=self.network.loss,
                watch=gradients.append,
            )
        change = {n: (v.detach() - after[n]).cpu().numpy() for n, v in before.items()}
        first = {n: g.cpu().numpy() for n, g in zip(before, gradients[0], strict=True)}
        scale = 1.0 / (update.recipe.rate * update.recipe.weight(update.count))
        return Replay(change, first, {name: scale * value for name, value in change.items()})

    def explained(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """‖s(images) − s‖ / ‖s‖ of what is shared, s, and how far the client's steps drift.

        The drift is ‖ḡ − g‖ / ‖g‖ of the mean gradient ḡ and the first step's g, on these images; 0
        for a gradient.
        """
        if self.update is not None:
            again = self.replay(images, labels)
            return apart(again.change, self.given), apart(again.mean, again.first)
        network = self.network
        own = gradient(network.module, images, labels, network.loss, network.mode)
        return apart(own, self.given), 0.0

    def labels(self, count: int) -> tuple[int, ...]:
        """Infer the classes of a batch from the gradient of the last layer's bias, in order.

        ∂ℓ/∂b = (1/K) Σ_k (p_k − y_k), so K (p̄ − ∂ℓ/∂b) counts the images of each class, if the
        mean softmax p̄ of the batch is that of noise. Counts are rounded so that they sum to K.
        Raises `ConfigError` if the loss is no cross-entropy, or no last bias is shared.
        """
        network = self.network
        if self.update is not None and (optimiser := self.update.recipe.optimiser) != "sgd":
            raise ConfigError(f"labels: give them; an update by {optimiser} does not tell them.")
        names = [n for n, v in self.gradient.items() if v.shape == (network.classes,)]
        if network.loss not in OF_CLASSES or not names:
            raise ConfigError(
                "labels: give them; they can be told from the gradient of a last bias under "
                "cross_entropy alone."
            )
        share = self.gradient[names[-1]].astype(np.float64)
        counts = count * (self._softmax - share)
        whole = np.maximum(np.floor(counts), 0.0).astype(int)
        left = count - int(whole.sum())
        if left < 0:
            raise NumericsError(
                f"labels: the last bias tells of more than {count} images; correct batch, or give "
                "the labels."
            )
        for label in np.argsort(-(counts - whole))[:left]:
            whole[label] += 1
        return tuple(np.repeat(np.arange(network.classes), whole).tolist())

    @cached_property
    def _softmax(self) -> np.ndarray:
        """Mean softmax (classes,) over uniform noise; 0 under raw logits, whose gradient is −y."""
        network = self.network
        if network.loss != "cross_entropy":
            return np.zeros(network.classes)
        noise = np.random.default_rng(0).random((NOISE, *network.size))
        with torch.no_grad(), passing(network.module, "evaluation"):
            found = network.module(as_tensor(noise, network.module)).double().softmax(1).mean(0)
        return np.asarray(found.cpu().numpy())


def open_shared(network: OwnNetwork, given: Gradient | Update) -> Shared:
    """Check what was shared; an update's own weights replace the network's.

    An update of one step of plain SGD is its gradient.
    """
    if not isinstance(given, Update):
        return Shared(network, named_gradient(given, network.module), None)
    buffers = dict(network.module.named_buffers())
    if mixed := [name for name in given.before if name in buffers]:
        raise ConfigError(
            f"update: {mixed[0]} is a buffer of {network.name}; give buffers as buffers_before and "
            "buffers_after."
        )
    state = dict(network.module.named_parameters()) | buffers
    with torch.no_grad():
        for name, value in {**given.before, **given.buffers_before}.items():
            if name not in state or state[name].shape != value.shape:
                raise ConfigError(
                    f"update: {name} of {list(value.shape)} is not in {network.name}; give the "
                    "network that was trained."
                )
            state[name].copy_(value)
    if missing := [n for n, _ in network.module.named_parameters() if n not in given.before]:
        raise ConfigError(f"update: {missing[0]} of {network.name} is missing; give all weights.")
    # In the order of the network's parameters.
    change = {name: given.change[name] for name, _ in network.module.named_parameters()}
    if given.steps == 1 and given.recipe.optimiser == "sgd":
        gradient = {n: v / given.recipe.rate for n, v in change.items()}
        return Shared(network, gradient, None, given.recipe)
    return Shared(network, change, given, given.recipe)


def apart(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """‖one − other‖ / ‖other‖ over the parameters of `other`."""
    rest = sum(float(np.sum((one[n].astype(np.float64) - v) ** 2)) for n, v in other.items())
    whole = sum(float(np.sum(v.astype(np.float64) ** 2)) for v in other.values())
    return float(np.sqrt(rest / whole))
