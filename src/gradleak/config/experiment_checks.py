"""Combinations in one experiment of config.yaml that cannot be run, each refused in a sentence."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from gradleak.config.schema import Config, Targets
from gradleak.config.training import BigGanConfig
from gradleak.data.catalogue import info, resolve
from gradleak.errors import ConfigError
from gradleak.models.activations import INVERTIBLE
from gradleak.models.chain import Chain
from gradleak.models.losses import BINARY
from gradleak.settings.fields import MOST
from gradleak.settings.validation_messages import check_known


def check_targets(config: Config, name: str) -> None:
    """Refuse images that a data set lacks; jobs report what a stand-in, which has fewer, lacks."""
    targets = config.targets[name]
    dataset = f"{targets.dataset}-{targets.split}"
    where, size = f"targets.{name}", info(targets.dataset).count(targets.split)
    if (last := max(targets.indices or [0])) >= size:
        raise ConfigError(
            f"{where}.indices: {last} is none of the {size} images of {dataset}, which count "
            "from 0; correct it."
        )
    count, batch, drawn = targets.count or 0, targets.batch, targets.draw == "random"
    if targets.indices is not None:
        return
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


class _Case:
    """An experiment, whose ids have been checked, and what it refers to."""

    def __init__(self, config: Config, name: str) -> None:
        self.config, self.experiment = config, config.experiments[name]
        self.where = f"experiments.{name}"
        self.targets = config.targets[self.experiment.targets]
        self.server = config.servers[self.experiment.server]
        # Each model with the entry that lists it.
        self.members = [(m, e) for e in self.experiment.models for m in config.members(e)]
        self.families = [model for model in self.experiment.models if model in config.families]

    def refused(self, words: str) -> ConfigError:
        return ConfigError(f"{self.where}: {words}")

    def shape(self, size: int | None) -> tuple[int, int, int]:
        """(C, H, W) of the target data set's images at a size."""
        channels, height, width = info(resolve(self.targets.dataset, self.config.images)).shape
        return channels, size or height, size or width


def check_weights(config: Config, name: str) -> None:
    """Refuse a server or a training run that does not fit the experiment."""
    case = _Case(config, name)
    for check in (_check_server, _check_training, _check_lock):
        check(case)


def check_experiment(config: Config, name: str, attacks: Iterable[str]) -> None:
    """Refuse networks, labels or starts that do not fit; `attacks` are those it runs or needs."""
    case = _Case(config, name)
    for member, _ in case.members:
        _check_pair(case, member)
    _check_listed_once(case)
    for attack, check in product(attacks, (_check_labels, _check_own_images, _check_generator)):
        check(case, attack)


def _check_server(case: _Case) -> None:
    """Refuse an attack without its server, and a server whose paths do not fit the images."""
    experiment, server, targets = case.experiment, case.server, case.targets
    for attack, entry in ((attack, case.config.attacks[attack]) for attack in experiment.attacks):
        if entry.reads_secret and entry.method != server.method:
            raise case.refused(
                f"attack {attack} reads the secret of a server of method: {entry.method}, but "
                f"server: {experiment.server} is {server.method}; choose such a server."
            )
        if not entry.reads_secret and experiment.kept == "classifier":
            raise case.refused(
                f"kept: classifier leaves out gradients that attack {attack} compares; set kept: "
                "all."
            )
    if server.method == "mkor" and (targets.offset or targets.std != 1.0):
        raise case.refused(
            f"MKOR's paths take inputs in [0, 1], but targets {experiment.targets} have offset: "
            f"{targets.offset:g} and std: {targets.std:g}; set them to 0 and 1."
        )
    if case.families and server.method != "honest":
        raise case.refused(
            f"a malicious server needs listed models, but {case.families[0]} is a family; list "
            "models, or set server: honest."
        )


def _check_training(case: _Case) -> None:
    """Refuse trained networks with other inputs than those under attack."""
    config, name = case.config, case.experiment.training
    if name is None:
        return
    check_known(f"{case.where}.training", [name], config.trainings)
    keys = ("dataset", "offset", "std", "size", "resize")
    for key, ours, theirs in _differing(config.trainings[name], case.targets, keys):
        raise case.refused(
            f"its networks are trained on {key}: {ours}, but targets {case.experiment.targets} "
            f"have {theirs}; give both the same."
        )
    if case.server.method != "honest":
        raise case.refused(
            f"a malicious server sends weights of its own, so training: {name} has no effect; set "
            "server: honest, or take training out."
        )
    if case.families:
        raise case.refused(
            f"{case.families[0]} is a family of random networks, which is not trained; list "
            "models, or take training out."
        )


def _differing(one: Any, other: Any, keys: Iterable[str]) -> Iterator[tuple[str, Any, Any]]:
    pairs = ((key, getattr(one, key), getattr(other, key)) for key in keys)
    return (pair for pair in pairs if pair[1] != pair[2])


def _check_lock(case: _Case) -> None:
    """Refuse locks under a server that sends all weights itself, and grants without a lock."""
    experiment, models = case.experiment, case.config.models
    locked = [m for m, _ in case.members if m in models and models[m].lock is not None]
    if locked and case.server.method != "honest":
        raise case.refused(
            f"{locked[0]} has a lock, whose weights stay with a client, but server: "
            f"{experiment.server} sends all weights; set server: honest, or list other models."
        )
    if experiment.lock != "withheld" and not locked:
        raise case.refused(
            f"lock: {experiment.lock} grants something of a lock, but none of its models has one; "
            "list a model with lock, or take the key out."
        )


def _check_listed_once(case: _Case) -> None:
    """Refuse a model that is listed alone and in a group, or in two."""
    places: dict[str, str] = {}
    for member, entry in case.members:
        if member in places:
            raise ConfigError(
                f"{case.where}.models: {member} is in {entry} and listed by {places[member]} too, "
                "so it would count twice; take one of them out."
            )
        places[member] = entry


def _check_labels(case: _Case, attack: str) -> None:
    """Refuse what needs a label that the attacker neither knows nor can recover."""
    entry, loss, batch = case.config.attacks[attack], case.experiment.loss, case.targets.batch
    if case.experiment.label == "granted":
        return
    where = f"label: recovered, but attack {attack}"
    if getattr(entry, "own_images", None) is not None:
        raise case.refused(
            f"{where} starts from images of the class, which it must know; set label: granted, or "
            "take the attack out."
        )
    if entry.needs_labels and (batch > 1 or loss in BINARY):
        reason = f"batches of {batch}" if batch > 1 else f"the loss {loss}"
        raise case.refused(
            f"{where} cannot tell the labels under {reason}; set label: granted, or choose an "
            "attack of method: dlg with label: unknown."
        )


def _check_own_images(case: _Case, attack: str) -> None:
    """Refuse starts from images of another data set or range, or from images under attack."""
    own_name = getattr(case.config.attacks[attack], "own_images", None)
    if own_name is None:
        return
    own, other = case.config.targets[own_name], case.targets
    where = f"attack {attack} starts from {own_name}, "
    if other.batch > 1:
        raise case.refused(
            f"{where}which are single images, but its targets have batches of {other.batch}; "
            "choose targets without batch, or take the attack out."
        )
    for key, ours, theirs in _differing(own, other, ("dataset", "offset", "std")):
        raise case.refused(
            f"{where}which has {key}: {ours}, but its targets have {theirs}; give both the same."
        )
    shared = _shared(_indices(own), _indices(other))
    if own.split == other.split and shared:
        raise case.refused(
            f"{where}which has image {min(shared)} of {own.dataset}-{own.split} that is under "
            f"attack ({len(shared)} such); choose images that are not."
        )


def _check_generator(case: _Case, attack: str) -> None:
    """Refuse a generator of another data set or size, or one trained on images under attack."""
    chosen = getattr(case.config.attacks[attack], "generator", None)
    if chosen is None:
        return
    entry, targets, batch = case.config.generators[chosen], case.targets, case.targets.batch
    where = f"attack {attack} searches generator {chosen}"
    if batch > 1:
        raise case.refused(
            f"attack {attack} searches for single images, but its targets have batches of {batch}; "
            "choose targets without batch, or take the attack out."
        )
    ours = "imagenet" if isinstance(entry, BigGanConfig) else entry.dataset
    if ours != targets.dataset:
        raise case.refused(
            f"{where} of {ours}'s classes, but its targets are of {targets.dataset}; choose "
            "another generator or target set."
        )
    theirs, other = (list(case.shape(one.size)) for one in (entry, targets))
    if theirs != other:
        raise case.refused(
            f"{where} of images of {theirs}, but its targets have {other}; give both the same size."
        )
    if isinstance(entry, BigGanConfig) or entry.split != targets.split:
        return
    shared = _shared(range(entry.first, entry.first + entry.images), _indices(targets))
    if targets.draw != "consecutive" or shared:
        which = "drawn images" if targets.draw != "consecutive" else f"image {min(shared)}"
        raise case.refused(
            f"{where}, which is trained on {which} of {entry.dataset}-{entry.split} that may be "
            "under attack; give it another split, first or number of images."
        )


def _shared(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    """Positions in both, without expanding ranges, which may be long."""
    if isinstance(one, range) and isinstance(other, range):
        return range(max(one.start, other.start), min(one.stop, other.stop))
    listed, rest = (other, one) if isinstance(one, range) else (one, other)
    return [index for index in listed if index in rest]


def _indices(targets: Targets) -> Sequence[int]:
    drawn = range(targets.first, targets.first + (targets.count or 0) * targets.batch)
    return targets.indices or drawn


def _check_pair(case: _Case, member: str) -> None:
    """Refuse images that a model cannot take, and settings that cannot run on it."""
    config, experiment = case.config, case.experiment
    family = None if member in config.models else config.families[member]
    own, shape = family or config.chain(member), case.shape(case.targets.size)
    if own.input != shape:
        dataset = resolve(case.targets.dataset, config.images)
        raise case.refused(
            f"{member} takes images of {list(own.input)}, but {experiment.targets} gives "
            f"{list(shape)} of {dataset}; choose another target set or model, or give the targets "
            "a size."
        )
    activations: list[str] = [family.activation] if family else []
    if family is None:
        _check_loss(case, config.chain(member))
        activations = [layer.activation.name for layer in config.chain(member).layers]
    elif experiment.loss in BINARY:
        raise case.refused(
            f"the loss {experiment.loss} needs networks of one output, but {member} is a family "
            f"with {family.classes}; list models, or choose loss: cross_entropy."
        )
    lacking = [a for a in activations if a not in INVERTIBLE]
    walking = [a for a in experiment.attacks if config.attacks[a].inverts_activations]
    if lacking and walking:
        raise case.refused(
            f"{member} has the activation '{lacking[0]}', which has no inverse, so attack "
            f"{walking[0]} cannot run on it; choose one of {', '.join(INVERTIBLE)}, or take the "
            "attack or the model out."
        )


def _check_loss(case: _Case, chain: Chain) -> None:
    loss, outputs = case.experiment.loss, chain.layers[-1].activation.name
    if loss in BINARY and (chain.classes != 1 or outputs != "identity"):
        raise case.refused(
            f"the loss {loss} takes one output without an activation, but {chain.name} ends with "
            f"{chain.classes} outputs and '{outputs}'; end it with {{fc: 1}}, or choose loss: "
            "cross_entropy."
        )
    if loss not in BINARY and chain.classes == 1:
        raise case.refused(
            f"{chain.name} has one output, on which cross-entropy is always 0 and raw logits say "
            f"nothing; choose one of {', '.join(BINARY)}."
        )
