"""config.yaml as a whole: unknown keys, ids and impossible combinations are refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from gradleak.data.catalogue import info, resolve
from gradleak.errors import ConfigError
from gradleak.losses import BINARY
from gradleak.models.activations import INVERTIBLE
from gradleak.models.chain import Chain
from gradleak.section import Identifier, Identifiers, Section
from gradleak.sections import (
    Amount,
    AttackConfig,
    Data,
    DefenceConfig,
    Experiment,
    Family,
    Model,
    Targets,
)
from gradleak.server_sections import HonestServer, ServerConfig
from gradleak.wording import nearest, sentence

# Attacks that need the inverse of every activation.
INVERTING = ("copa",)
# Attacks that are made from the reconstructions of others, without a gradient of their own.
POST = ("total_variation", "h_gap")
# Attacks that search for an image under known labels, which they do not find by themselves.
SEARCHES = ("dlg", "inverting_gradients", "gauss_newton")
# Attacks that give twin data beside their answer.
WITH_TWINS = ("rgap",)
# Attacks that read the secret of a server of the same method.
SECRET = ("mkor", "class_fishing")
# Ids that a sentence lists; the nearest one is named anyway.
MOST_CHOICES = 10
# Keys that take a number or the name of one in `scales`.
AMOUNTS = (
    "seeds",
    "count",
    "networks",
    "starts",
    "iterations",
    "images",
    "conditions",
    "batch",
    "classes",
    "size",
)


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
    groups: dict[Identifier, Identifiers] = Field(default={})
    servers: dict[Identifier, ServerConfig] = Field(
        default={"honest": HonestServer(method="honest")}
    )
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
        channels, height, width = (self.amount(value) for value in entry.input)
        size = channels, height, width
        return Chain(model, size, entry.specs(self.amount), entry.spread)

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
        _check_listed_once(config, name)
        for attack in _run_in(config, experiment):
            _check_labels(config, name, attack)
            _check_own_images(config, name, attack)
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
        _known(f"{where}.server", [experiment.server], config.servers)
        _check_server(config, name)
        _amounts_known(where, experiment, config)
    for name, model in config.models.items():
        _known(f"models.{name}.layers.fc", model.amounts, config.scales)
    for name, targets in config.targets.items():
        _amounts_known(f"targets.{name}", targets, config)
    for name, family in config.families.items():
        _amounts_known(f"families.{name}", family, config)
    _check_attacks(config)


def _check_server(config: Config, name: str) -> None:
    """Refuse an attack without its server, and a server whose paths the images do not fit."""
    experiment = config.experiments[name]
    server = config.servers[experiment.server]
    for attack in experiment.attacks:
        method = config.attacks[attack].method
        if method in SECRET and method != server.method:
            raise ConfigError(
                f"config.yaml: experiments.{name}: attack {attack} reads the secret of a server of "
                f"method: {method}, but server: {experiment.server} is {server.method}; choose "
                "such a server."
            )
        if method not in ("mkor", "class_fishing") and experiment.kept == "classifier":
            raise ConfigError(
                f"config.yaml: experiments.{name}: kept: classifier leaves out gradients that "
                f"attack {attack} compares; set kept: all."
            )
    offset = config.targets[experiment.targets].offset
    if server.method == "mkor" and offset:
        raise ConfigError(
            f"config.yaml: experiments.{name}: MKOR's paths take inputs in [0, 1], but targets "
            f"{experiment.targets} have offset: {offset:g}; set it to 0."
        )
    families = [model for model in experiment.models if model in config.families]
    if families and server.method != "honest":
        raise ConfigError(
            f"config.yaml: experiments.{name}: a malicious server needs listed models, but "
            f"{families[0]} is a family; list models, or set server: honest."
        )


def _check_attacks(config: Config) -> None:
    """Amounts and the ids that attacks name; an attack is made from one that needs no other."""
    for name, entry in config.attacks.items():
        where = f"attacks.{name}"
        _amounts_known(where, entry, config)
        own_images = getattr(entry, "own_images", None)
        if own_images is not None:
            _known(f"{where}.own_images", [own_images], config.targets)
            size = config.amount(config.targets[own_images].batch)
            if size > 1:
                raise ConfigError(
                    f"config.yaml: {where}.own_images: {own_images} has batches of "
                    f"{size}, but a search starts from single images; "
                    "choose targets without batch."
                )
        choices = [
            other
            for other, e in config.attacks.items()
            if e.method not in POST and (entry.method in POST or not made_from(e))
        ]
        for made in made_from(entry):
            if made in config.attacks and made not in choices:
                raise ConfigError(
                    f"config.yaml: {where}.of: {made} is itself made from another attack; choose "
                    f"one that is not: {', '.join(choices)}."
                )
        _known(f"{where}.of", made_from(entry), choices)
        if getattr(entry, "answer", "answer") == "twin":
            _check_twin(config, name)


def _check_twin(config: Config, name: str) -> None:
    """Refuse a start from the twin of an attack that gives none."""
    giving = [other for other, entry in config.attacks.items() if entry.method in WITH_TWINS]
    for of in made_from(config.attacks[name]):
        if of not in giving:
            raise ConfigError(
                f"config.yaml: attacks.{name}.answer: twin, but {of} gives no twin data; choose "
                f"of: {' or '.join(giving) or 'an attack of method: rgap'}, or take answer out."
            )


def made_from(entry: AttackConfig) -> list[str]:
    """Attacks whose reconstructions an attack needs."""
    of = getattr(entry, "of", None)
    return [] if of is None else [of] if isinstance(of, str) else list(of)


def _run_in(config: Config, experiment: Experiment) -> list[str]:
    """Attacks of an experiment and those that they are made from, each once."""
    listed = [[name, *made_from(config.attacks[name])] for name in experiment.attacks]
    return list(dict.fromkeys(name for names in listed for name in names))


def _check_listed_once(config: Config, name: str) -> None:
    """Refuse a model that an experiment has by itself and in a group, or in two groups."""
    places: dict[str, str] = {}
    for entry in config.experiments[name].models:
        for member in config.members(entry):
            if member in places:
                raise ConfigError(
                    f"config.yaml: experiments.{name}.models: {member} is in {entry} and listed "
                    f"by {places[member]} too, so it would count twice; take one of them out."
                )
            places[member] = entry


def _check_labels(config: Config, name: str, attack: str) -> None:
    """Refuse what needs a label that the attacker is not told and cannot tell."""
    experiment, entry = config.experiments[name], config.attacks[attack]
    if experiment.label == "granted":
        return
    where = f"config.yaml: experiments.{name}: label: recovered, but"
    if getattr(entry, "own_images", None) is not None:
        raise ConfigError(
            f"{where} attack {attack} starts from images of the class, which it must know; set "
            "label: granted, or take the attack out."
        )
    if entry.method not in SEARCHES or getattr(entry, "label", "from_view") == "unknown":
        return
    batch = config.amount(config.targets[experiment.targets].batch)
    reason = f"batches of {batch}" if batch > 1 else f"the loss {experiment.loss}"
    if batch > 1 or experiment.loss in BINARY:
        raise ConfigError(
            f"{where} attack {attack} cannot tell the labels under {reason}; set label: granted, "
            "or choose an attack of method: dlg with label: unknown."
        )


def _check_own_images(config: Config, name: str, attack: str) -> None:
    """Refuse starts of another kind than the images under attack, or that are under attack."""
    own_name = getattr(config.attacks[attack], "own_images", None)
    if own_name is None:
        return
    own, other = config.targets[own_name], config.targets[config.experiments[name].targets]
    where = f"config.yaml: experiments.{name}: attack {attack} starts from {own_name}, "
    if config.amount(other.batch) > 1:
        raise ConfigError(
            f"{where}which are single images, but its targets have batches of {other.batch}; "
            "choose targets without batch, or take the attack out."
        )
    for key in ("dataset", "offset"):
        ours, theirs = getattr(own, key), getattr(other, key)
        if ours != theirs:
            raise ConfigError(
                f"{where}which has {key}: {ours}, but its targets have {theirs}; give both the "
                "same."
            )
    shared = sorted(set(_indices(config, own)) & set(_indices(config, other)))
    if own.split == other.split and shared:
        raise ConfigError(
            f"{where}which has image {shared[0]} of {own.dataset}-{own.split} that is under attack "
            f"({len(shared)} such); choose images that are not."
        )


def _indices(config: Config, targets: Targets) -> list[int]:
    """Positions of a target set in its split."""
    if targets.indices is not None:
        return targets.indices
    assert targets.count is not None
    images = config.amount(targets.count) * config.amount(targets.batch)
    return list(range(targets.first, targets.first + images))


def _check_pair(config: Config, name: str, model: str) -> None:
    """Refuse images that a model cannot be fed with, and what cannot run on it."""
    experiment = config.experiments[name]
    targets = config.targets[experiment.targets]
    dataset = resolve(targets.dataset, config.images)
    for member in config.members(model):
        own = config.chain(member) if member in config.models else config.families[member]
        channels, height, width = info(dataset).shape
        size = None if targets.size is None else config.amount(targets.size)
        shape = (channels, size or height, size or width)
        if own.input != shape:
            raise ConfigError(
                f"config.yaml: experiments.{name}: {member} takes images of {list(own.input)}, "
                f"but {experiment.targets} gives {list(shape)} of {dataset}; choose another target "
                "set or model, or give the targets a size."
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
            "is always 0 and raw logits say nothing; choose one of " + ", ".join(BINARY) + "."
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
