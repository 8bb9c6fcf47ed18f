"""Malicious server: MKOR's weights are sent, and one gradient per batch comes back."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradleak.attacks.base import Reconstruction
from gradleak.attacks.runner import run_seed
from gradleak.client.defences.base import noise_seed
from gradleak.data.targets import TargetSet
from gradleak.errors import ConfigError, NumericsError
from gradleak.models.files import fingerprint
from gradleak.servers.base import SEED
from gradleak.servers.base import build as build_server
from gradleak.servers.mkor import options_for
from gradleak.servers.secret import Secret
from gradleak_audit.attack.attack_suite import Entry, mkor
from gradleak_audit.attack.networks import ChainNetwork, Network, Shared
from gradleak_audit.attack.trials import Bench, Best, Judge, Score, case
from gradleak_audit.result import NONE, Case

# Batch size, if the network has as many classes.
MOST = 8


@dataclass(frozen=True)
class Chapter:
    """Outcome of the malicious server's attack."""

    reason: str = ""  # why it does not apply
    case: Case | None = None  # one run for each image of the batch and seed
    best: Best = field(default_factory=Best)


def chapter(entry: Entry, network: Network, bench: Bench) -> Chapter:
    """Run MKOR on the unchanged network; the first images share a gradient per seed."""
    if reason := _inapplicable(entry, network, bench):
        return Chapter(reason)
    assert isinstance(network, ChainNetwork)
    attack = mkor(entry, network.chain)
    size = max(1, min(MOST, network.chain.classes, len(bench.samples)))
    targets = bench.samples.targets(np.arange(size)[None], bench.offset, bench.std)
    judge, runs, best = Judge(bench.pool()), [], Best()
    for draw in range(bench.seeds):
        found: Reconstruction | str
        options, weights = options_for(network.chain), network.weights(draw)
        try:
            sent, values = build_server(options).corrupt(network.chain, weights, SEED + draw)
        except ConfigError as error:
            return Chapter(network.told(str(error)))
        labels, mark = targets.labels[0], fingerprint(sent)
        try:
            gradient = network.gradient(sent, targets.inputs(0), labels, noise_seed(draw, 0))
            view = network.view(draw, Shared(gradient, labels, run_seed(draw, 0)))
            known: dict[str, Any] = {
                "secret": Secret("mkor", mark, options, values),
                "fingerprint": mark,
            }
            view = replace(view, weights=sent, labels=None, **known)
            found = attack.run(view, run_seed(draw, 0))
        except NumericsError as error:
            found = network.told(str(error))
        for number, label in zip(targets.indices[0].tolist(), labels, strict=True):
            pixels = _answer(found, label, targets)
            one = np.array([number])
            score: Score | str = (
                pixels if isinstance(pixels, str) else judge.score(pixels[None], one)
            )
            runs.append(best.record(entry.id, number, draw, score))
    return Chapter("", case(NONE, entry.id, size, runs), best)


def _inapplicable(entry: Entry, network: Network, bench: Bench) -> str:
    if (reason := network.reason(entry)) or not isinstance(network, ChainNetwork):
        return reason
    inputs = ""
    if (bench.offset, bench.std) != (0.0, 1.0):
        inputs = f"'s inputs are (pixel + {bench.offset:g}) / {bench.std:g}; fold both"
    elif network.before is not None:
        inputs = " scales or shifts its image; fold that"
    if inputs:
        paths = "MKOR's paths carry values from 0 to 1, but the network"
        return f"{paths}{inputs} into its first layer to try it."
    if bench.margin:
        return "MKOR tells images apart by their classes, which a loss of one output does not have."
    return ""


def _answer(found: Reconstruction | str, label: int, targets: TargetSet) -> np.ndarray | str:
    if isinstance(found, str):
        return found
    if label not in found.classes:
        return "The attack found no image of its class."
    pixels = np.clip(targets.pixels(found.images[found.classes.index(label)]), 0.0, 1.0)
    return pixels if np.isfinite(pixels).all() else "The image of its class is not finite."
