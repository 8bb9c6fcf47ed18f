"""Combinations in one experiment of config.yaml that cannot be run, each refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradleak.config.generators import BigGanConfig
from gradleak.config.schema import Config, Experiment, Targets
from gradleak.data.catalogue import info, resolve
from gradleak.errors import ConfigError
from gradleak.models.activations import INVERTIBLE
from gradleak.models.chain import Chain
from gradleak.models.losses import BINARY
from gradleak.settings.fields import MOST
from gradleak.settings.validation_messages import check_known

# Images of each published split; stand-ins have fewer.
PUBLISHED = {
    "mnist": {"train": 60_000, "test": 10_000},
    "cifar10": {"train": 50_000, "test": 10_000},
    "cifar100": {"train": 50_000, "test": 10_000},
    "imagenet": {"val": 50_000},
}


def check_targets(config: Config, name: str) -> None:
    """Refuse images that a data set lacks, under either setting of `images`.

    A stand-in has fewer; a job that needs more reports it. Raises `ConfigError` naming the entry
    and both numbers.
    """
    targets = config.targets[name]
    dataset = f"{targets.dataset}-{targets.split}"
    where, size = f"targets.{name}", PUBLISHED[targets.dataset][targets.split]
    if targets.indices is not None:
        last = max(targets.indices)
        if last >= size:
            raise ConfigError(
                f"{where}.indices: {last} is none of the {size} images of {dataset}, which count "
                "from 0; correct it."
            )
        return
    assert targets.count is not None
    count, batch = targets.count, targets.batch
    drawn = targets.draw == "random"
    if targets.first + (batch if drawn else count * batch) > size:
        asked = f"batch: {batch}" if drawn else f"count: {count} of batch: {batch}"
        raise ConfigError(
            f"{where}: {asked} from image {targets.first} on takes more than the {size} "
            f"images of {dataset}; lower {'batch' if drawn else 'count, batch or first'}."
        )
    if count * batch * (1 + targets.relabel) > MOST:
        raise ConfigError(
            f"{where}: count: {count} of batch: {batch}, each {1 + targets.relabel} times, are "
            f"more than {MOST} images; lower count or relabel."
        )


def check_weights(config: Config, name: str) -> None:
    """Raise `ConfigError` for a server or a training run that does not fit the experiment."""
    _check_server(config, name)
    _check_training(config, name)
    _check_lock(config, name)


def check_experiment(config: Config, name: str, attacks: Iterable[str]) -> None:
    """Raise `ConfigError` for networks, losses, labels or starts that do not fit together.

    `config` has been checked for ids; `attacks` are those of experiment `name` and those that
    they are made from.
    """
    for model in config.experiments[name].models:
        _check_pair(config, name, model)
    _check_listed_once(config, name)
    for attack in attacks:
        _check_labels(config, name, attack)
        _check_own_images(config, name, attack)
        _check_generator(config, name, attack)


def _check_server(config: Config, name: str) -> None:
    """Refuse an attack without its server, and a server whose paths do not fit the images."""
    experiment = config.experiments[name]
    server = config.servers[experiment.server]
    for attack in experiment.attacks:
        entry = config.attacks[attack]
        if entry.reads_secret and entry.method != server.method:
            raise ConfigError(
                f"config.yaml: experiments.{name}: attack {attack} reads the secret of a server of "
                f"method: {entry.method}, but server: {experiment.server} is {server.method}; "
                "choose such a server."
            )
        if not entry.reads_secret and experiment.kept == "classifier":
            raise ConfigError(
                f"config.yaml: experiments.{name}: kept: classifier leaves out gradients that "
                f"attack {attack} compares; set kept: all."
            )
    targets = config.targets[experiment.targets]
    if server.method == "mkor" and (targets.offset or targets.std != 1.0):
        raise ConfigError(
            f"config.yaml: experiments.{name}: MKOR's paths take inputs in [0, 1], but targets "
            f"{experiment.targets} have offset: {targets.offset:g} and std: {targets.std:g}; set "
            "them to 0 and 1."
        )
    families = [model for model in experiment.models if model in config.families]
    if families and server.method != "honest":
        raise ConfigError(
            f"config.yaml: experiments.{name}: a malicious server needs listed models, but "
            f"{families[0]} is a family; list models, or set server: honest."
        )


def _check_training(config: Config, name: str) -> None:
    """Refuse trained networks with other inputs than those under attack."""
    experiment = config.experiments[name]
    if experiment.training is None:
        return
    where = f"experiments.{name}"
    check_known(f"{where}.training", [experiment.training], config.trainings)
    training = config.trainings[experiment.training]
    targets = config.targets[experiment.targets]
    for key in ("dataset", "offset", "std", "size", "resize"):
        ours, theirs = getattr(training, key), getattr(targets, key)
        if ours != theirs:
            raise ConfigError(
                f"{where}: its networks are trained on {key}: {ours}, but targets "
                f"{experiment.targets} have {theirs}; give both the same."
            )
    if config.servers[experiment.server].method != "honest":
        raise ConfigError(
            f"{where}: a malicious server sends weights of its own, so training: "
            f"{experiment.training} has no effect; set server: honest, or take training out."
        )
    families = [model for model in experiment.models if model in config.families]
    if families:
        raise ConfigError(
            f"{where}: {families[0]} is a family of random networks, which is not trained; list "
            "models, or take training out."
        )


def _check_lock(config: Config, name: str) -> None:
    """Refuse locks under a server that sends all weights itself, and grants without a lock."""
    experiment = config.experiments[name]
    where = f"experiments.{name}"
    members = [m for model in experiment.models for m in config.members(model)]
    locked = [m for m in members if m in config.models and config.models[m].lock is not None]
    if locked and config.servers[experiment.server].method != "honest":
        raise ConfigError(
            f"{where}: {locked[0]} has a lock, whose weights stay with a client, but server: "
            f"{experiment.server} sends all weights; set server: honest, or list other models."
        )
    if experiment.lock != "withheld" and not locked:
        raise ConfigError(
            f"{where}: lock: {experiment.lock} grants something of a lock, but none of its models "
            "has one; list a model with lock, or take the key out."
        )


def _check_listed_once(config: Config, name: str) -> None:
    """Refuse a model that an experiment lists both alone and in a group, or in two groups."""
    places: dict[str, str] = {}
    for entry in config.experiments[name].models:
        for member in config.members(entry):
            if member in places:
                raise ConfigError(
                    f"experiments.{name}.models: {member} is in {entry} and listed "
                    f"by {places[member]} too, so it would count twice; take one of them out."
                )
            places[member] = entry


def _check_labels(config: Config, name: str, attack: str) -> None:
    """Refuse what needs a label that the attacker neither knows nor can recover."""
    experiment, entry = config.experiments[name], config.attacks[attack]
    if experiment.label == "granted":
        return
    where = f"config.yaml: experiments.{name}: label: recovered, but"
    if getattr(entry, "own_images", None) is not None:
        raise ConfigError(
            f"{where} attack {attack} starts from images of the class, which it must know; set "
            "label: granted, or take the attack out."
        )
    if not entry.needs_labels:
        return
    batch = config.targets[experiment.targets].batch
    reason = f"batches of {batch}" if batch > 1 else f"the loss {experiment.loss}"
    if batch > 1 or experiment.loss in BINARY:
        raise ConfigError(
            f"{where} attack {attack} cannot tell the labels under {reason}; set label: granted, "
            "or choose an attack of method: dlg with label: unknown."
        )


def _check_own_images(config: Config, name: str, attack: str) -> None:
    """Refuse starts from images of another data set or range, or from images under attack."""
    own_name = getattr(config.attacks[attack], "own_images", None)
    if own_name is None:
        return
    own, other = config.targets[own_name], config.targets[config.experiments[name].targets]
    where = f"config.yaml: experiments.{name}: attack {attack} starts from {own_name}, "
    if other.batch > 1:
        raise ConfigError(
            f"{where}which are single images, but its targets have batches of {other.batch}; "
            "choose targets without batch, or take the attack out."
        )
    for key in ("dataset", "offset", "std"):
        ours, theirs = getattr(own, key), getattr(other, key)
        if ours != theirs:
            raise ConfigError(
                f"{where}which has {key}: {ours}, but its targets have {theirs}; give both the "
                "same."
            )
    shared = _shared(_indices(config, own), _indices(config, other))
    if own.split == other.split and shared:
        raise ConfigError(
            f"{where}which has image {min(shared)} of {own.dataset}-{own.split} that is under "
            f"attack ({len(shared)} such); choose images that are not."
        )


def _check_generator(config: Config, name: str, attack: str) -> None:
    """Refuse a generator of another data set or size, or one trained on images under attack."""
    chosen = getattr(config.attacks[attack], "generator", None)
    if chosen is None:
        return
    entry, targets = config.generators[chosen], config.targets[config.experiments[name].targets]
    where = f"config.yaml: experiments.{name}: attack {attack} "
    batch = targets.batch
    if batch > 1:
        raise ConfigError(
            f"{where}searches for single images, but its targets have batches of {batch}; choose "
            "targets without batch, or take the attack out."
        )
    ours = "imagenet" if isinstance(entry, BigGanConfig) else entry.dataset
    if ours != targets.dataset:
        raise ConfigError(
            f"{where}searches generator {chosen} of {ours}'s classes, but its targets are of "
            f"{targets.dataset}; choose another generator or target set."
        )
    sides = [_shape(config, one.size, targets.dataset) for one in (entry, targets)]
    if sides[0] != sides[1]:
        raise ConfigError(
            f"{where}searches generator {chosen} of images of {list(sides[0])}, but its targets "
            f"have {list(sides[1])}; give both the same size."
        )
    if isinstance(entry, BigGanConfig) or entry.split != targets.split:
        return
    used = range(entry.first, entry.first + entry.images)
    drawn = targets.draw != "consecutive"
    shared = _shared(used, _indices(config, targets))
    if drawn or shared:
        which = "drawn images" if drawn else f"image {min(shared)}"
        raise ConfigError(
            f"{where}searches generator {chosen}, which is trained on {which} of "
            f"{entry.dataset}-{entry.split} that may be under attack; give it another split, "
            "first or number of images."
        )


def _shape(config: Config, size: int | None, dataset: str) -> tuple[int, int, int]:
    """(C, H, W) of a data set's images at a size."""
    channels, height, width = info(resolve(dataset, config.images)).shape
    return channels, size or height, size or width


def _shared(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    """Positions in both, without expanding ranges, which may be long."""
    if isinstance(one, range) and isinstance(other, range):
        return range(max(one.start, other.start), min(one.stop, other.stop))
    listed, rest = (other, one) if isinstance(one, range) else (one, other)
    return [index for index in listed if index in rest]


def _indices(config: Config, targets: Targets) -> Sequence[int]:
    """Positions of a target set in its split."""
    if targets.indices is not None:
        return targets.indices
    assert targets.count is not None
    return range(targets.first, targets.first + targets.count * targets.batch)


def _check_pair(config: Config, name: str, model: str) -> None:
    """Refuse images that a model cannot take, and settings that cannot run on it."""
    experiment = config.experiments[name]
    targets = config.targets[experiment.targets]
    dataset = resolve(targets.dataset, config.images)
    for member in config.members(model):
        own = config.chain(member) if member in config.models else config.families[member]
        shape = _shape(config, targets.size, targets.dataset)
        if own.input != shape:
            raise ConfigError(
                f"experiments.{name}: {member} takes images of {list(own.input)}, "
                f"but {experiment.targets} gives {list(shape)} of {dataset}; choose another target "
                "set or model, or give the targets a size."
            )
        if member in config.models:
            _check_loss(name, experiment, config.chain(member))
        elif experiment.loss in BINARY:
            raise ConfigError(
                f"experiments.{name}: the loss {experiment.loss} needs networks of "
                f"one output, but {member} is a family with {config.families[member].classes}; "
                "list models, or choose loss: cross_entropy."
            )
        _check_activations(config, name, member)


def _check_loss(name: str, experiment: Experiment, chain: Chain) -> None:
    outputs = chain.layers[-1].activation.name
    if experiment.loss in BINARY and (chain.classes != 1 or outputs != "identity"):
        raise ConfigError(
            f"experiments.{name}: the loss {experiment.loss} takes one output without "
            f"an activation, but {chain.name} ends with {chain.classes} outputs and '{outputs}'; "
            "end it with {fc: 1}, or choose loss: cross_entropy."
        )
    if experiment.loss not in BINARY and chain.classes == 1:
        raise ConfigError(
            f"experiments.{name}: {chain.name} has one output, on which cross-entropy "
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
    walking = [a for a in attacks if config.attacks[a].inverts_activations]
    if lacking and walking:
        raise ConfigError(
            f"config.yaml: experiments.{name}: {model} has the activation '{lacking[0]}', which "
            f"has no inverse, so attack {walking[0]} cannot run on it; choose one of "
            f"{', '.join(INVERTIBLE)}, or take the attack or the model out."
        )
