"""What a change costs: parameters, multiply-adds, a client's time, accuracy."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gradleak.auditing.cases import Bench
from gradleak.auditing.changes import NONE, Variant
from gradleak.auditing.networks import ChainNetwork, Network, signed
from gradleak.auditing.result import Audit, Price
from gradleak.auditing.telling import told
from gradleak.defences.apply import noise_seed
from gradleak.defences.base import Client, Defence
from gradleak.errors import ConfigError, DataError, NumericsError
from gradleak.training.data import Split, divide
from gradleak.training.engine import Trainer
from gradleak.training.recipe import Recipe

LOG = logging.getLogger("gradleak")
# Steps whose time is taken, and their median; fewer where they last, but so many, in seconds.
REPEATS, LEAST, ENOUGH = 9, 4, 5.0
# Images of a training step of the unchanged network.
STEP = 16
# Learning rates, of which the unchanged network's validation images choose one for all changes.
RATES = (0.05, 0.01)


@dataclass(frozen=True)
class Training:
    """Amounts of a short training: images to learn from, to choose by and to test on, epochs.

    `work` bounds the multiply-adds of all passes, beyond which no training is run.
    """

    train: int
    validation: int
    test: int
    epochs: int
    work: float


TRAININGS = {
    "smoke": Training(64, 16, 64, 1, 1e11),
    "laptop": Training(800, 80, 400, 10, 2e12),
    "paper": Training(40_000, 1_000, 5_000, 30, 1e17),
}


@dataclass(frozen=True)
class Accuracy:
    """Share of right answers on images that nothing was learnt from; None for the reason given."""

    value: float | None
    reason: str = ""


def prices(
    variants: Sequence[Variant], unchanged: Network, accuracy: Mapping[str, Accuracy]
) -> dict[str, Price | None]:
    """Ratios to the unchanged network, by change; seconds are filled in by `with_seconds`.

    None for a change that was not tried.
    """
    out: dict[str, Price | None] = {}
    for variant in variants:
        network, out[variant.id] = variant.network, None
        if network is None:
            continue
        out[variant.id] = Price(
            parameters=network.parameters / unchanged.parameters,
            multiply_adds=network.multiply_adds / max(1, unchanged.multiply_adds),
            seconds=None,
            accuracy=accuracy[variant.id].value,
            baseline=accuracy[NONE].value,
            note=accuracy[variant.id].reason,
        )
    return out


def step_seconds(variants: Sequence[Variant], bench: Bench) -> dict[str, float]:
    """Seconds of a client's step (gradient and defence), by change: they differ from run to run.

    The median of some steps after one that warms up. All changes take turns, so that a machine
    that is busy for a while slows all of them. Changes that were not tried are left out.
    """
    taken: dict[str, list[float]] = {v.id: [] for v in variants if v.network is not None}
    rounds = 0
    while rounds <= REPEATS and (rounds < LEAST or _most(taken) < ENOUGH):
        rounds += 1
        for variant in variants:
            if variant.id in taken:
                try:
                    taken[variant.id].append(_step(variant, bench))
                except NumericsError:
                    del taken[variant.id]
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def _most(taken: Mapping[str, Sequence[float]]) -> float:
    return max((sum(values) for values in taken.values()), default=ENOUGH)


def _step(variant: Variant, bench: Bench) -> float:
    """Seconds of one step, without drawing weights, which a client has."""
    network = variant.network
    assert network is not None
    if isinstance(network, ChainNetwork):
        weights = network.weights(0)
        network = replace(network, weights=lambda draw: weights)
    targets = bench.targets(variant.batch)
    labels = signed(targets.labels[0], bench.margin)
    images = targets.inputs(0)
    begin = time.perf_counter()
    network.share(0, images, labels, variant.defence, noise_seed(0, 0))
    return time.perf_counter() - begin


def with_seconds(audit: Audit, seconds: Mapping[str, float]) -> Audit:
    """The result with each change's time of a step, relative to that of the unchanged network."""
    base = seconds.get(NONE)
    changes = []
    for change in audit.changes:
        if change.price is None or base is None or change.id not in seconds:
            changes.append(change)
            continue
        priced = change.price.model_copy(update={"seconds": seconds[change.id] / base})
        changes.append(change.model_copy(update={"price": priced}))
    return audit.model_copy(update={"changes": tuple(changes)})


def accuracies(variants: Sequence[Variant], bench: Bench, scale: str) -> dict[str, Accuracy]:
    """Accuracy after the same short training of each network that was tried, by change."""
    shared = _why_none(variants[0], bench, TRAININGS[scale])
    split = None if shared else _split(bench, TRAININGS[scale])
    if isinstance(split, str):
        shared, split = split, None
    out: dict[str, Accuracy] = {}
    rate = RATES[0]
    if split is not None:
        rate, out[NONE] = _unchanged(variants[0], split, TRAININGS[scale])
    for variant in variants:
        if variant.network is None or variant.id in out:
            continue
        if split is None:
            out[variant.id] = Accuracy(None, shared)
        elif variant.kind == "soteria":
            why = "Soteria takes many passes for each step, so no training was run."
            out[variant.id] = Accuracy(None, why)
        else:
            larger = variant.batch // variants[0].batch
            found, _ = _trained(variant, larger, split, TRAININGS[scale], rate)
            out[variant.id] = found
            LOG.info("%s: accuracy %s", variant.id, out[variant.id].value)
    return out


def _unchanged(variant: Variant, split: Split, amounts: Training) -> tuple[float, Accuracy]:
    """Learning rate under which the unchanged network learns best, and its accuracy."""
    tried = [_trained(variant, 1, split, amounts, rate) for rate in RATES]
    best = max(range(len(RATES)), key=lambda k: tried[k][1])
    return RATES[best], tried[best][0]


def _why_none(unchanged: Variant, bench: Bench, amounts: Training) -> str:
    network = unchanged.network
    if not bench.samples.labelled:
        return "The images have no classes to learn."
    if not isinstance(network, ChainNetwork):
        return "Only chains of layers are trained here."
    if network.before is not None:
        return "A network that scales or shifts its image is not trained here."
    if bench.margin:
        return "A network of one output is not trained here."
    passes = 3 * amounts.train * amounts.epochs + amounts.test + amounts.epochs * amounts.validation
    if network.multiply_adds * passes > amounts.work:
        return "The network is too large to be trained at this scale."
    return ""


def _split(bench: Bench, amounts: Training) -> Split | str:
    counts = {"train": amounts.train, "validation": amounts.validation, "test": amounts.test}
    try:
        return divide(
            bench.samples.dataset(),
            counts,
            seed=0,
            offset=bench.offset,
            std=bench.std,
            device=torch.device("cpu"),
        )
    except DataError:
        return "There are too few images to train and test on."


def _trained(
    variant: Variant, larger: int, split: Split, amounts: Training, rate: float
) -> tuple[Accuracy, float]:
    """Accuracy on test images, and the best one on validation images, −1 if it failed.

    A step takes `larger` times as many images as one of the unchanged network.
    """
    network = variant.network
    assert isinstance(network, ChainNetwork)
    recipe = Recipe(
        epochs=amounts.epochs,
        batch=min(STEP * larger, len(split.train)),
        rate=rate,
        warmup=0.1,
        crop=0,
        flip=False,
        precision="float32",
    )
    try:
        found = Defended(network, split, recipe, variant.defence).run()
    except NumericsError:
        return Accuracy(None, "Its training diverged."), -1.0
    except ConfigError as error:
        return Accuracy(None, told(str(error), network.chain, network.names)), -1.0
    best = max(row["validation_accuracy"] for row in found.rows)
    return Accuracy(found.accuracy, _TOLD.get(variant.kind, "")), best


_TOLD = {
    "batch": "Trained on as many images, in steps that are as much larger: fewer of them.",
    "noise": f"Noise is added in each training step, to the gradient of {STEP} images.",
    "clip": f"Scaled down in each training step, to the gradient of {STEP} images.",
}


class Defended(Trainer):
    """A training in which each step's gradient is defended as a shared one is.

    Parameters
    ----------
    network
        Starts with the weights of its first draw.
    split, recipe
        As of `Trainer`.
    defence
        One that looks at gradients alone; None for none.
    """

    def __init__(
        self, network: ChainNetwork, split: Split, recipe: Recipe, defence: Defence | None
    ) -> None:
        super().__init__(network.chain, network.held(0), split, recipe, 0)
        self._defence, self._steps = defence, 0

    def _step(self, inputs: torch.Tensor, labels: torch.Tensor, rate: float) -> torch.Tensor:
        """See `Learner._step`."""
        output, loss = self._forward(inputs, labels)
        self.optimiser.forget_gradients()
        loss.backward()
        if self._defence is not None:
            self._defend(self._defence)
        self.optimiser.step(rate)
        self._steps += 1
        right = (output.detach().argmax(1) == labels).sum()
        return torch.stack([loss.detach().double() * len(labels), right.double()])

    def _defend(self, defence: Defence) -> None:
        """Put what would be shared in the place of all gradients."""
        own = {n: p.grad for n, p in self.module.named_parameters() if p.grad is not None}
        nothing = Client(self.chain, {}, np.empty(0), np.empty(0))
        found = defence.apply(
            nothing,
            {name: grad.cpu().numpy() for name, grad in own.items()},
            noise_seed(self.seed, self._steps),
        )
        for name, grad in own.items():
            grad.copy_(torch.from_numpy(found[name]))
