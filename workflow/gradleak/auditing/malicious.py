"""The malicious server's chapter: MKOR's weights are sent, one gradient of a batch comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gradleak.attacks.base import Attack, AttackerView, ManyAttack, Reconstruction
from gradleak.attacks.run import build, run_seed
from gradleak.auditing.cases import Bench, Best, case, failed, record
from gradleak.auditing.menu import Entry, mkor_options
from gradleak.auditing.networks import ChainNetwork, Network
from gradleak.auditing.result import Case, Run
from gradleak.auditing.scoring import Judge
from gradleak.auditing.telling import told
from gradleak.defences.apply import noise_seed
from gradleak.errors import ConfigError, NumericsError
from gradleak.gradients import capture
from gradleak.models.chain import Chain
from gradleak.models.files import fingerprint
from gradleak.servers.base import SEED
from gradleak.servers.base import build as build_server
from gradleak.servers.secret import Secret
from gradleak.targets import TargetSet

# Images that share the gradient, if the network has so many classes to tell them apart by.
MOST = 8


@dataclass(frozen=True)
class Chapter:
    """What came of it.

    Attributes
    ----------
    reason
        Why it does not apply; empty if it does.
    case
        A run for each image of the batch and draw; None if it does not apply.
    best
        Answers for the page.
    """

    reason: str
    case: Case | None
    best: Best


def batch_size(classes: int, images: int) -> int:
    """Images that share the gradient."""
    return max(1, min(MOST, classes, images))


def chapter(entry: Entry, network: Network, change: str, bench: Bench) -> Chapter:
    """Run MKOR on the unchanged network.

    Parameters
    ----------
    entry
        Of the menu.
    network, change
        The unchanged network, and its id among the changes.
    bench
        Images: the first of each class share one gradient, draw after draw.
    """
    reason = _inapplicable(entry, network, bench)
    if reason:
        return Chapter(reason, None, Best())
    assert isinstance(network, ChainNetwork)
    attack = build(mkor_options(entry, network.chain))
    assert not isinstance(attack, ManyAttack)
    size = batch_size(network.chain.classes, len(bench.samples))
    targets = bench.samples.targets(np.arange(size)[None], bench.offset, bench.std)
    runs: list[Run] = []
    best = Best()
    for draw in range(bench.seeds):
        try:
            view = _received(network, draw, targets)
        except ConfigError as error:
            return Chapter(told(str(error), network.chain, network.names), None, Best())
        runs += _read(attack, network, view, draw, targets, bench.judge(), best)
    return Chapter("", case(change, entry.id, size, runs), best)


def _inapplicable(entry: Entry, network: Network, bench: Bench) -> str:
    if (reason := network.reason(entry)) or not isinstance(network, ChainNetwork):
        return reason
    if (bench.offset, bench.std) != (0.0, 1.0):
        return (
            "MKOR's paths carry values from 0 to 1, but the network's inputs are "
            f"(pixel + {bench.offset:g}) / {bench.std:g}; fold both into its first layer to try it."
        )
    if network.before is not None:
        return (
            "MKOR's paths carry values from 0 to 1, but the network scales or shifts its image; "
            "fold that into its first layer to try it."
        )
    if bench.margin:
        return "MKOR tells images apart by their classes, which a loss of one output does not have."
    return ""


def server_options(chain: Chain) -> dict[str, Any]:
    """Settings of the server that a chain allows: spare channels silent where ReLU makes it so."""
    quiet = all(
        layer.activation.name == "relu" and (layer.bias or layer.normed)
        for layer in chain.convolutions
    )
    common = {"method": "mkor", "classifier": "untouched"}
    if quiet:
        return {**common, "beta": 0.5, "noise": 1e-4, "spare": "silent"}
    return {**common, "beta": 1.0, "noise": 1e-3, "spare": "noise"}


def _received(network: ChainNetwork, draw: int, targets: TargetSet) -> AttackerView | str:
    """What the server gets back of one batch; a sentence if it is of no use."""
    chain, task = network.chain, network.task
    options = server_options(chain)
    sent, values = build_server(options).corrupt(chain, network.weights(draw), SEED + draw)
    mark = fingerprint(sent)
    try:
        shared = capture(
            chain,
            sent,
            targets.inputs(0),
            targets.labels[0],
            precision="float32",
            device=task.device,
            loss=task.loss,
            seed=noise_seed(draw, 0),
            mode=task.mode,
        )
    except NumericsError as error:
        return told(str(error), chain, network.names)
    return AttackerView(
        network.attacked,
        sent,
        shared,
        None,
        task.low,
        task.high,
        task.loss,
        targets.size,
        secret=Secret("mkor", mark, options, values),
        fingerprint=mark,
        mode=task.mode,
    )


def _read(
    attack: Attack,
    network: ChainNetwork,
    view: AttackerView | str,
    draw: int,
    targets: TargetSet,
    judge: Judge,
    best: Best,
) -> list[Run]:
    """A run for each image of the batch: what the attack gives for its class."""
    numbers, labels = targets.indices[0].tolist(), targets.labels[0].tolist()
    try:
        found = view if isinstance(view, str) else attack.run(view, run_seed(draw, 0))
    except NumericsError as error:
        found = told(str(error), network.chain, network.names)
    if not isinstance(found, Reconstruction):
        return [failed(number, draw, found) for number in numbers]
    place = {label: k for k, label in enumerate(found.classes)}
    out = []
    for number, label in zip(numbers, labels, strict=True):
        if label not in place:
            out.append(failed(number, draw, "The attack found no image of its class."))
            continue
        pixels = np.clip(targets.pixels(found.images[place[label]]), 0.0, 1.0)
        if not np.isfinite(pixels).all():
            out.append(failed(number, draw, "The answer for its class is not finite."))
            continue
        score = judge.score(pixels[None], np.array([number]))
        best.offer("mkor", number, draw, score)
        out.append(record(number, draw, score))
    return out
