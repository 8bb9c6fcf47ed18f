"""Run every attack on every change and score the reconstructions."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradleak.attacks.runner import run_seed
from gradleak.client.defences.apply import noise_seed
from gradleak.data.targets import TargetSet
from gradleak.errors import NumericsError
from gradleak_audit.attack.attack_suite import CLOSED, HONEST, MASKED, Entry
from gradleak_audit.attack.mitigations import Variant
from gradleak_audit.attack.networks import Shared
from gradleak_audit.attack.samples import Samples
from gradleak_audit.attack.scoring import Judge, Score
from gradleak_audit.result import Case, Run, Spread

LOG = logging.getLogger("gradleak")


@dataclass(frozen=True)
class Bench:
    """Settings shared by all cases of an audit."""

    samples: Samples
    count: int  # batches under attack
    seeds: int  # number of seeds, of the weights or, if these are given, of the attacks
    largest: int  # images of the largest batch
    offset: float  # of the network's input, as in `gradleak.data.targets.TargetSet`
    std: float
    margin: bool  # whether the loss is a margin loss with labels −1 and 1

    def targets(self, size: int) -> TargetSet:
        """Return batches of `size` images."""
        return self.samples.targets(self.samples.batches(self.count, size), self.offset, self.std)

    def batch(self, size: int, number: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Inputs (K, C, H, W) and labels (K,) of a batch of `size` images, as a client has them."""
        targets = self.targets(size)
        labels = targets.labels[number]
        # A margin loss takes −1 or 1, by parity.
        return targets.inputs(number), 2 * (labels % 2) - 1 if self.margin else labels

    def pool(self) -> np.ndarray:
        """Images in [0, 1] (P, C, H, W) that reconstructions are compared with."""
        return self.samples.pool(self.count, self.largest)


@dataclass
class Best:
    """Best reconstruction of each image by each attack, as its score and seed number."""

    answers: dict[str, dict[int, tuple[Score, int]]] = field(default_factory=dict)

    def offer(self, attack: str, image: int, draw: int, score: Score) -> None:
        """Keep a reconstruction unless a better one is known."""
        known = self.answers.setdefault(attack, {})
        if image not in known or score.rank > known[image][0].rank:
            known[image] = score, draw

    @property
    def pictures(self) -> dict[str, dict[int, np.ndarray]]:
        """Pixels in [0, 1] (C, H, W) of the reconstructions."""
        return {
            attack: {image: score.picture for image, (score, _) in found.items()}
            for attack, found in self.answers.items()
        }


def cases(variant: Variant, entries: Sequence[Entry], bench: Bench) -> tuple[list[Case], Best]:
    """Run all attacks of an honest server on one change; return their cases and best answers."""
    network, chosen = variant.network, [entry for entry in entries if entry.chapter == HONEST]
    assert network is not None
    reasons = {entry.id: why_not(entry, variant) for entry in chosen}
    targets, judge, best = bench.targets(variant.batch), Judge(bench.pool()), Best()
    runs: dict[str, list[Run]] = {entry.id: [] for entry in chosen}
    for draw in range(bench.seeds):
        shared = [_shared(variant, draw, number, bench) for number in range(bench.count)]
        for entry in chosen:
            if why := reasons[entry.id]:
                none = (record(i, draw, why, "not_applicable") for i in range(bench.count))
                runs[entry.id] += none
                continue
            given = [one for one in shared if isinstance(one, Shared)]
            answers = iter(network.answers(entry, draw, given))
            for image, one in enumerate(shared):
                answer = one if isinstance(one, str) else next(answers)
                if isinstance(answer, str):
                    runs[entry.id].append(record(image, draw, answer))
                    continue
                if entry.id == CLOSED and variant.batch == 1 and isinstance(one, Shared):
                    # Other attacks start from what a closed-form attack found.
                    shared[image] = replace(one, start=answer.images[None])
                pixels = np.clip(targets.pixels(answer.images), 0.0, 1.0)
                score = judge.score(pixels, targets.indices[image])
                runs[entry.id].append(record(image, draw, score))
                best.offer(entry.id, image, draw, score)
    out = [case(variant.id, entry.id, variant.batch, runs[entry.id]) for entry in chosen]
    for found in out:
        if found.attempted:
            amounts = found.readable, found.attempted, found.ok
            LOG.info("%s, %s: %d of %d readable, %d ok", variant.id, found.attack, *amounts)
    return out, best


def why_not(entry: Entry, variant: Variant) -> str:
    """Reason why an attack does not apply to a change; empty if it does."""
    assert variant.network is not None
    if entry.id == MASKED and variant.kind != "soteria":
        return "Nothing of the gradient is withheld."
    return variant.network.reason(entry)


def case(change: str, attack: str, batch: int, runs: Sequence[Run]) -> Case:
    """Count and summarise runs; inapplicable ones do not count as attempted."""
    ok = [run for run in runs if run.status == "ok"]
    own: dict[str, Any] = {"change": change, "attack": attack, "batch": batch, "ok": len(ok)}
    own["attempted"] = sum(run.status != "not_applicable" for run in runs)
    own |= {key: sum(getattr(run, key) for run in runs) for key in ("readable", "matched")}
    for key in ("psnr", "ssim"):
        known = [value for value in (getattr(run, key) for run in ok) if value is not None]
        own[key] = None
        if known:
            own[key] = Spread(mean=float(np.mean(known)), low=min(known), high=max(known))
    return Case(**own, runs=tuple(runs))


def record(image: int, draw: int, found: Score | str, status: str = "failed") -> Run:
    """Return the run of a scored reconstruction, or of a failure with its reason."""
    own: dict[str, Any] = {"status": status, "reason": found, "psnr": None, "ssim": None}
    own |= {"matched": False, "readable": False}
    if isinstance(found, Score):
        own = {key: getattr(found, key) for key in ("psnr", "ssim", "matched", "readable")}
        own |= {"status": "ok", "reason": ""}
    return Run(image=image, seed=draw, **own)


def _shared(variant: Variant, draw: int, number: int, bench: Bench) -> Shared | str:
    """Return what a client shares of a batch under one seed, or why it is unusable."""
    assert variant.network is not None
    images, labels = bench.batch(variant.batch, number)
    given = draw, images, labels, variant.defence, noise_seed(draw, number)
    try:
        return Shared(variant.network.share(*given), labels, run_seed(draw, number))
    except NumericsError as error:
        return str(error)
