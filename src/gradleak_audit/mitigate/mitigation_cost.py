"""Cost of a change: parameters, multiply-adds, a client's time, accuracy."""

import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gradleak.client.defences.base import Client, Defence, noise_seed
from gradleak.errors import ConfigError, DataError, NumericsError
from gradleak.runtime.progress import progress
from gradleak.training.data import Split, divide
from gradleak.training.engine import Trainer
from gradleak.training.recipe import Recipe
from gradleak_audit.attack.mitigations import Variant
from gradleak_audit.attack.networks import ChainNetwork, Network
from gradleak_audit.attack.trials import Bench
from gradleak_audit.result import NONE, Audit, Change, Price

LOG = logging.getLogger("gradleak")
# Timed steps, of which the median counts; fewer if slow, within this many seconds.
REPEATS, LEAST, ENOUGH = 9, 4, 5.0
# Batch size of training for the unchanged network.
STEP = 16
TOLD = {
    "batch": "Trained on as many images, in steps that are as much larger: fewer of them.",
    "noise": f"Noise is added in each training step, to the gradient of {STEP} images.",
    "clip": f"Scaled down in each training step, to the gradient of {STEP} images.",
}
# Learning rates; the validation accuracy of the unchanged network selects one for all changes.
RATES = (0.05, 0.01)


@dataclass(frozen=True)
class Training:
    """Amounts of a short training run."""

    train: int  # images to learn from
    validation: int  # to select the learning rate
    test: int
    epochs: int
    work: float  # multiply-adds of all passes, beyond which training is skipped


TRAININGS = {
    "smoke": Training(64, 16, 64, 1, 1e11),
    "laptop": Training(800, 80, 400, 10, 2e12),
    "paper": Training(40_000, 1_000, 5_000, 30, 1e17),
}


# Test accuracy, or None with a reason.
Accuracy = tuple[float | None, str]


def prices(variants: Sequence[Variant], bench: Bench, scale: str) -> dict[str, Price]:
    """Costs, without times, of each change that was tried, relative to the unchanged network."""
    accuracy, unchanged = accuracies(variants, bench, scale), variants[0].network
    assert unchanged is not None
    return {
        variant.id: Price(
            parameters=network.parameters / unchanged.parameters,
            multiply_adds=network.multiply_adds / max(1, unchanged.multiply_adds),
            seconds=None,
            accuracy=accuracy[variant.id][0],
            baseline=accuracy[NONE][0],
            note=accuracy[variant.id][1],
        )
        for variant in variants
        if (network := variant.network) is not None
    }


def step_seconds(variants: Sequence[Variant], bench: Bench) -> dict[str, float]:
    """Median seconds of a client's step by change; they take turns, as loads on machines vary."""
    taken: dict[str, list[float]] = {v.id: [] for v in variants if v.network is not None}
    for number in range(REPEATS + 1):
        if number >= LEAST and max(map(sum, taken.values()), default=ENOUGH) >= ENOUGH:
            break
        for variant in variants:
            if variant.id in taken:
                try:
                    taken[variant.id].append(_step(variant, bench))
                except NumericsError:
                    del taken[variant.id]
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def _step(variant: Variant, bench: Bench) -> float:
    network = variant.network
    assert network is not None
    if isinstance(network, ChainNetwork):
        weights = network.weights(0)
        network = replace(network, weights=lambda draw: weights)
    images, labels = bench.batch(variant.batch)
    begin = time.perf_counter()
    network.share(0, images, labels, variant.defence, noise_seed(0, 0))
    return time.perf_counter() - begin


def with_seconds(audit: Audit, seconds: Mapping[str, float]) -> Audit:
    """Return the result with the relative time of a step for each change."""

    def timed(change: Change) -> Change:
        if change.price is None or not {NONE, change.id} <= seconds.keys():
            return change
        ratio = {"seconds": seconds[change.id] / seconds[NONE]}
        return change.model_copy(update={"price": change.price.model_copy(update=ratio)})

    return audit.model_copy(update={"changes": tuple(map(timed, audit.changes))})


def accuracies(variants: Sequence[Variant], bench: Bench, scale: str) -> dict[str, Accuracy]:
    """Test accuracy by change after the same short training run of each network."""
    amounts, unchanged = TRAININGS[scale], variants[0]
    tried = [variant for variant in variants if variant.network is not None]
    split = _split(unchanged.network, bench, amounts)
    if isinstance(split, str):
        return {variant.id: (None, split) for variant in tried}
    by_rate = {rate: _trained(unchanged, 1, split, amounts, rate) for rate in RATES}
    rate = max(by_rate, key=lambda rate: by_rate[rate][1])
    out = {NONE: by_rate[rate][0]}
    for variant in progress(tried, "trainings"):
        if variant.kind == "soteria":
            why = "Soteria takes many passes for each step, so no training was run."
            out[variant.id] = None, why
        elif variant.id != NONE:
            larger = variant.batch // unchanged.batch
            out[variant.id], _ = _trained(variant, larger, split, amounts, rate)
            LOG.info("%s: accuracy %s", variant.id, out[variant.id][0])
    return out


def _split(network: Network | None, bench: Bench, amounts: Training) -> Split | str:
    """Images to train the unchanged network and all others on, or why they are not trained."""
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
    counts = {key: getattr(amounts, key) for key in ("train", "validation", "test")}
    how: dict[str, Any] = {"seed": 0, "offset": bench.offset, "std": bench.std}
    try:
        return divide(bench.samples.dataset(), counts, device=torch.device("cpu"), **how)
    except DataError:
        return "There are too few images to train and test on."


def _trained(
    variant: Variant, larger: int, split: Split, amounts: Training, rate: float
) -> tuple[Accuracy, float]:
    """Test accuracy, and the best validation accuracy, −1 if training failed."""
    network = variant.network
    assert isinstance(network, ChainNetwork)
    sizes = amounts.epochs, min(STEP * larger, len(split.train)), rate
    recipe = Recipe(*sizes, warmup=0.1, precision="float32", crop=0, flip=False)
    try:
        found = Defended(network, split, recipe, variant.defence).run()
    except NumericsError:
        return (None, "Its training diverged."), -1.0
    except ConfigError as error:
        return (None, network.told(str(error))), -1.0
    best = max(row["validation_accuracy"] for row in found.rows)
    return (found.accuracy, TOLD.get(variant.kind, "")), best


class Defended(Trainer):
    """Training from the first initialization with a defence of each step's gradient."""

    def __init__(
        self, network: ChainNetwork, split: Split, recipe: Recipe, defence: Defence | None
    ) -> None:
        super().__init__(network.chain, network.held(0), split, recipe, 0)
        self._defence, self._steps = defence, 0

    def _step(self, inputs: torch.Tensor, labels: torch.Tensor, rate: float) -> torch.Tensor:
        output, loss = self._forward(inputs, labels)
        self.optimiser.forget_gradients()
        loss.backward()
        if self._defence is not None:
            own = {n: p.grad for n, p in self.module.named_parameters() if p.grad is not None}
            nothing = Client(self.chain, {}, np.empty(0), np.empty(0))
            gradients = {name: grad.cpu().numpy() for name, grad in own.items()}
            found = self._defence.apply(nothing, gradients, noise_seed(self.seed, self._steps))
            for name, grad in own.items():
                grad.copy_(torch.from_numpy(found[name]))
        self.optimiser.step(rate)
        self._steps += 1
        right = (output.detach().argmax(1) == labels).sum()
        return torch.stack([loss.detach().double() * len(labels), right.double()])
