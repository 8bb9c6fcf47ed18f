"""Amount of work of a job, by its script and wildcards and the settings in config.yaml."""

import math
from collections.abc import Mapping
from typing import Any

from gradleak.config.schema import Config
from gradleak.data.catalogue import info, resolve, shrunk
from gradleak.settings.fields import SCALES

# Networks with more parameters: R-GAP's ResNets and VGG-16 in part; VGG-16 with all its nodes.
MEDIUM, LARGE = 1_000_000, 30_000_000
AT_LENGTH = ("smoke", "laptop", "paper")  # scales at which no search ends early
# Amounts of an entry of `attacks` that lengthen a job.
STEPS = ("starts", "iterations", "generations")


def parameters(config: Config, model: str) -> int:
    """Parameters of all networks in a model's file, for one seed; 0 for families."""
    if model not in {**config.models, **config.families, **config.groups}:
        raise KeyError(model)
    members = [name for name in config.members(model) if name in config.models]
    return sum(config.chain(member).parameters for member in members)


def size_of(count: int) -> str:
    """Size of a network in words: ``small``, ``medium`` or ``large``."""
    return "large" if count > LARGE else "medium" if count > MEDIUM else "small"


def key_of(config: Config, wildcards: Mapping[str, str]) -> str:
    """Kind of a job: the method of its attack and the size of its network, if it has them.

    At scale night attacks that search, and their scores, are told apart by paper: how early they
    end depends on its settings.
    """
    parts = []
    if "attack" in wildcards:
        attack = config.attacks[wildcards["attack"]]
        parts.append(str(attack.method))
        if attack.searches and config.scale == "night":
            parts.append(config.experiments[wildcards["experiment"]].paper)
    if "model" in wildcards:
        parts.append(size_of(parameters(config, wildcards["model"])))
    return " ".join(parts)


def _product(entry: Any, *names: str) -> int:
    values = (getattr(entry, name, None) for name in names)
    return math.prod(value for value in values if value is not None)


def training_images(config: Config, training: str) -> int:
    """Images that a network sees in all epochs of a training, of those that the data set has."""
    own = config.trainings[training]
    counts = {part: getattr(own, part) for part in ("train", "validation", "test")}
    there = info(resolve(own.dataset, config.images)).count(own.split)
    return shrunk(counts, there)["train"] * own.epochs


def work(config: Config, script: str, wildcards: Mapping[str, str]) -> tuple[int, int]:
    """Time and memory of a job, in units that are meaningful only as ratios.

    Time grows with images, seeds, steps, epochs, pixels and parameters; memory with parameters, or
    with activations: images that share a gradient, pixels, and the width, about the root of the
    parameters. Only attack scripts take an attack's steps.
    """
    time = batch = pixels = weights = 1
    if "experiment" in wildcards:
        experiment = config.experiments[wildcards["experiment"]]
        chosen = config.targets[experiment.targets]
        count = _product(chosen, "count")
        if script == "attack" and "attack" in wildcards:
            most = getattr(config.attacks[wildcards["attack"]], "images", None)
            count = min(count, most or count)
        time *= count * experiment.seeds
        batch = chosen.batch
    if "targets" in wildcards:
        chosen = config.targets[wildcards["targets"]]
        batch, pixels = _product(chosen, "count", "batch"), _product(chosen, "size") ** 2
    if script == "attack" and "attack" in wildcards:
        time *= _product(config.attacks[wildcards["attack"]], *STEPS)
    if "training" in wildcards:
        time *= training_images(config, wildcards["training"])
        if "model" in wildcards:
            time *= config.drawn(wildcards["model"], wildcards["training"])
    if "generator" in wildcards:
        time *= _product(config.generators[wildcards["generator"]], "images", "epochs")
    if "model" in wildcards:
        members = [m for m in config.members(wildcards["model"]) if m in config.models]
        pixels = max(1, sum(math.prod(config.chain(member).input) for member in members))
        weights = max(1, parameters(config, wildcards["model"]))
    return time * batch * pixels * weights, max(weights, batch * pixels * math.isqrt(weights))


def telling(config: Config, script: str, wildcards: Mapping[str, str]) -> list[str]:
    """Scales whose jobs tell how long this one takes: its own, smaller ones, then larger ones.

    Attacks that search end early at scale night, so that they do not tell of other scales.
    """
    at = SCALES.index(config.scale)
    found: list[str] = [config.scale, *reversed(SCALES[:at]), *SCALES[at + 1 :]]
    if script == "attack" and config.attacks[wildcards["attack"]].searches:
        return [scale for scale in found if scale in (config.scale, *AT_LENGTH)]
    return found
