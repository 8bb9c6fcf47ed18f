"""config.yaml as a whole: unknown keys, ids and impossible combinations are refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from gradleak.data.catalogue import info, resolve
from gradleak.errors import ConfigError
from gradleak.losses import BINARY
from gradleak.models.activations import INVERTIBLE
from gradleak.models.chain import Chain
from gradleak.sections import (
    Amount,
    AttackConfig,
    Data,
    DefenceConfig,
    Experiment,
    Family,
    Identifier,
    Model,
    Section,
    Targets,
)
from gradleak.wording import nearest, sentence

# Attacks that need the inverse of every activation.
INVERTING = ("copa",)
# Attacks that are made from the reconstructions of others, without a gradient of their own.
POST = ("total_variation", "h_gap")
# Ids that a sentence lists; the nearest one is named anyway.
MOST_CHOICES = 10
# Keys that take a number or the name of one in `scales`.
AMOUNTS = ("seeds", "count", "networks", "starts", "iterations", "images", "conditions")


class Config(Section):
    """All of config.yaml."""

    images: Literal["embedded", "real"]
    scale: Literal["smoke", "laptop", "paper"]
    device: Literal["auto", "cpu", "cuda", "mps"]
    data: Data
    scales: dict[Identifier, Amount]
    targets: dict[Identifier, Targets]
    models: dict[Identifier, Model]
    families: dict[Identifier, Family]
    groups: dict[Identifier, Annotated[list[Identifier], Field(min_length=1)]] = Field(default={})
    defences: dict[Identifier, DefenceConfig]
    attacks: dict[Identifier, AttackConfig]
    experiments: dict[Identifier, Experiment]

    def amount(self, value: int | str) -> int:
        """Resolve an amount: a number, or a name in `scales` at the current scale."""
        if isinstance(value, int):
            return value
        return int(getattr(self.scales[value], self.scale))

    def chain(self, model: str) -> Chain:
        """Chain of one entry of `models`."""
        entry = self.models[model]
        return Chain(model, entry.input, entry.specs(), entry.spread)

    def members(self, model: str) -> list[str]:
        """Models in the file of an id: those of a group, or the model itself."""
        return self.groups.get(model, [model])


def load(raw: dict[str, Any]) -> Config:
    """Check a parsed config.yaml.

    Raises
    ------
    ConfigError
        Naming the first bad key, its value and what to do; further ones are counted.
    """
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"config.yaml: {sentence(error, Config)}") from error
    _check_ids(config)
    for name in config.models:
        _ = config.chain(name).layers
    for name, experiment in config.experiments.items():
        for model in experiment.models:
            _check_pair(config, name, model)
    return config


def schema() -> dict[str, Any]:
    """JSON Schema of config.yaml, for editors."""
    return Config.model_json_schema()


def _check_ids(config: Config) -> None:
    kinds: dict[str, Mapping[str, Any]] = {
        "model": config.models,
        "family": config.families,
        "group": config.groups,
    }
    for one, other in combinations(kinds, 2):
        overlap = sorted(set(kinds[one]) & set(kinds[other]))
        if overlap:
            raise ConfigError(
                f"config.yaml: {overlap[0]} is both a {one} and a {other}; rename one."
            )
    networks = [*config.models, *config.families, *config.groups]
    for name, members in config.groups.items():
        _known(f"groups.{name}", members, config.models)
    for name, experiment in config.experiments.items():
        where = f"experiments.{name}"
        _known(f"{where}.targets", [experiment.targets], config.targets)
        _known(f"{where}.models", experiment.models, networks)
        _known(f"{where}.defences", experiment.defences, config.defences)
        _known(f"{where}.attacks", experiment.attacks, config.attacks)
        _amounts_known(where, experiment, config)
    for name, targets in config.targets.items():
        _amounts_known(f"targets.{name}", targets, config)
    for name, family in config.families.items():
        _amounts_known(f"families.{name}", family, config)
    _check_attacks(config)


def _check_attacks(config: Config) -> None:
    """Amounts and the ids that attacks name; an attack is made from one that needs no other."""
    for name, entry in config.attacks.items():
        where = f"attacks.{name}"
        _amounts_known(where, entry, config)
        own_images = getattr(entry, "own_images", None)
        if own_images is not None:
            _known(f"{where}.own_images", [own_images], config.targets)
        choices = [
            other
            for other, e in config.attacks.items()
            if e.method not in POST and (entry.method in POST or not made_from(e))
        ]
        _known(f"{where}.of", made_from(entry), choices)


def made_from(entry: AttackConfig) -> list[str]:
    """Attacks whose reconstructions an attack needs."""
    of = getattr(entry, "of", None)
    return [] if of is None else [of] if isinstance(of, str) else list(of)


def _check_pair(config: Config, name: str, model: str) -> None:
    """Refuse images that a model cannot be fed with, and what cannot run on it."""
    experiment = config.experiments[name]
    targets = config.targets[experiment.targets]
    dataset = resolve(targets.dataset, config.images)
    for member in config.members(model):
        entry = config.models.get(member) or config.families[member]
        if tuple(entry.input) != info(dataset).shape:
            raise ConfigError(
                f"config.yaml: experiments.{name}: {member} takes images of {list(entry.input)}, "
                f"but {dataset} has {list(info(dataset).shape)}; choose another target set or "
                "model."
            )
        if member in config.models:
            _check_loss(name, experiment, config.chain(member))
        elif experiment.loss in BINARY:
            raise ConfigError(
                f"config.yaml: experiments.{name}: the loss {experiment.loss} needs networks of "
                f"one output, but {member} is a family with {config.families[member].classes}; "
                "list models, or choose loss: cross_entropy."
            )
        _check_activations(config, name, member)


def _check_loss(name: str, experiment: Experiment, chain: Chain) -> None:
    outputs = chain.layers[-1].activation.name
    if experiment.loss in BINARY and (chain.classes != 1 or outputs != "identity"):
        raise ConfigError(
            f"config.yaml: experiments.{name}: the loss {experiment.loss} takes one output without "
            f"an activation, but {chain.name} ends with {chain.classes} outputs and '{outputs}'; "
            "end it with {fc: 1}, or choose loss: cross_entropy."
        )
    if experiment.loss not in BINARY and chain.classes == 1:
        raise ConfigError(
            f"config.yaml: experiments.{name}: {chain.name} has one output, on which cross-entropy "
            "is always 0; choose one of " + ", ".join(BINARY) + "."
        )


def _check_activations(config: Config, name: str, model: str) -> None:
    activations = (
        [layer.activation.name for layer in config.chain(model).layers]
        if model in config.models
        else [config.families[model].activation]
    )
    lacking = [a for a in activations if a not in INVERTIBLE]
    attacks = config.experiments[name].attacks
    walking = [a for a in attacks if config.attacks[a].method in INVERTING]
    if lacking and walking:
        raise ConfigError(
            f"config.yaml: experiments.{name}: {model} has the activation '{lacking[0]}', which "
            f"has no inverse, so attack {walking[0]} cannot run on it; choose one of "
            f"{', '.join(INVERTIBLE)}, or take the attack or the model out."
        )


def _amounts_known(where: str, section: BaseModel, config: Config) -> None:
    for key in AMOUNTS:
        value = getattr(section, key, None)
        if isinstance(value, str):
            _known(f"{where}.{key}", [value], config.scales)


def _known(key: str, values: Iterable[str], known: Iterable[str]) -> None:
    choices = list(known)
    more = ", …" if len(choices) > MOST_CHOICES else ""
    for value in values:
        if value not in choices:
            raise ConfigError(
                f"config.yaml: {key}: '{value}' is not defined{nearest(value, choices)}; "
                f"define it or choose one of {', '.join(choices[:MOST_CHOICES])}{more}."
            )


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
