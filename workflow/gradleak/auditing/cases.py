"""Every attack on every change: runs, scores, and what counts as read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradleak.attacks.base import Reconstruction
from gradleak.attacks.run import run_seed
from gradleak.auditing.changes import Variant
from gradleak.auditing.menu import CLOSED, MASKED, Entry, honest
from gradleak.auditing.networks import Answer, Arrays, Failed, Network, signed
from gradleak.auditing.result import Case, Run, Spread
from gradleak.auditing.samples import Samples
from gradleak.auditing.scoring import Judge, Score
from gradleak.defences.apply import noise_seed
from gradleak.errors import NumericsError
from gradleak.targets import TargetSet

LOG = logging.getLogger("gradleak")


@dataclass(frozen=True)
class Bench:
    """What all cases of an audit have in common.

    Attributes
    ----------
    samples
        Images.
    count, seeds, largest
        Batches under attack, draws, and images of the largest batch.
    offset, std
        Of the network's input, as of `gradleak.targets.TargetSet`.
    margin
        Whether the loss is one of a margin, whose labels are −1 and 1.
    """

    samples: Samples
    count: int
    seeds: int
    largest: int
    offset: float
    std: float
    margin: bool

    def targets(self, size: int) -> TargetSet:
        """Batches of `size` images."""
        return self.samples.targets(self.samples.batches(self.count, size), self.offset, self.std)

    def judge(self) -> Judge:
        """What answers are compared with."""
        return Judge(self.samples.pool(self.count, self.largest))


@dataclass
class Best:
    """The best answer of each attack to each image: pixels in [0, 1] (C, H, W) and their score."""

    pictures: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)
    scores: dict[str, dict[int, Score]] = field(default_factory=dict)
    seeds: dict[str, dict[int, int]] = field(default_factory=dict)

    def offer(self, attack: str, image: int, seed: int, score: Score) -> None:
        """Keep an answer if there is no better one."""
        known = self.scores.setdefault(attack, {}).get(image)
        if known is None or score.rank > known.rank:
            self.scores[attack][image] = score
            self.pictures.setdefault(attack, {})[image] = score.picture
            self.seeds.setdefault(attack, {})[image] = seed


def cases(variant: Variant, entries: Sequence[Entry], bench: Bench) -> tuple[list[Case], Best]:
    """All honest-server attacks on one change.

    Parameters
    ----------
    variant
        The change, with a network.
    entries
        The menu.
    bench
        Images and amounts.

    Returns
    -------
    tuple
        A case for each attack that applies to the changed network or says why not, and the best
        answers. Runs that failed are in it, with their reason.
    """
    network = variant.network
    assert network is not None
    chosen = honest(tuple(entries))
    reasons = {entry.id: why_not(entry, variant) for entry in chosen}
    targets, judge, best = bench.targets(variant.batch), bench.judge(), Best()
    runs: dict[str, list[Run]] = {entry.id: [] for entry in chosen}
    for draw in range(bench.seeds):
        shared = _shared(variant, network, draw, targets, bench)
        starts: list[np.ndarray | None] = [None] * bench.count
        for entry in chosen:
            if reasons[entry.id]:
                runs[entry.id] += [_none(i, draw, reasons[entry.id]) for i in range(bench.count)]
                continue
            found = _answers(network, entry, draw, shared, starts, targets, bench)
            if entry.id == CLOSED and variant.batch == 1:
                starts = [_start(answer) for answer in found]
            for image, answer in enumerate(found):
                run, score = _run(image, draw, answer, targets, judge)
                runs[entry.id].append(run)
                if score is not None:
                    best.offer(entry.id, image, draw, score)
    out = [case(variant.id, entry.id, variant.batch, runs[entry.id]) for entry in chosen]
    for one in out:
        if one.attempted:
            LOG.info(
                "%s, %s: %d of %d readable, %d ok",
                variant.id,
                one.attack,
                one.readable,
                one.attempted,
                one.ok,
            )
    return out, best


def why_not(entry: Entry, variant: Variant) -> str:
    """Why an attack does not apply to a change; empty if it does."""
    assert variant.network is not None
    if entry.id == MASKED and variant.kind != "soteria":
        return "Nothing of the gradient is withheld."
    return variant.network.reason(entry)


def case(change: str, attack: str, batch: int, runs: Sequence[Run]) -> Case:
    """Counts and spreads of runs; those that do not apply were not attempted."""
    ok = [run for run in runs if run.status == "ok"]
    return Case(
        change=change,
        attack=attack,
        batch=batch,
        attempted=sum(run.status != "not_applicable" for run in runs),
        ok=len(ok),
        readable=sum(run.readable for run in runs),
        matched=sum(run.matched for run in runs),
        psnr=_spread([run.psnr for run in ok if run.psnr is not None]),
        ssim=_spread([run.ssim for run in ok if run.ssim is not None]),
        runs=tuple(runs),
    )


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    return Spread(mean=float(np.mean(values)), low=min(values), high=max(values))


Shared = Arrays | Failed


def _shared(
    variant: Variant, network: Network, draw: int, targets: TargetSet, bench: Bench
) -> list[Shared]:
    """What clients share of each batch under one draw, or why it is of no use."""
    out: list[Shared] = []
    for number in range(bench.count):
        labels = signed(targets.labels[number], bench.margin)
        try:
            found = network.share(
                draw,
                targets.inputs(number),
                labels,
                variant.defence,
                noise_seed(draw, number),
            )
        except NumericsError as error:
            out.append(Failed(str(error)))
        else:
            out.append(found)
    return out


def _answers(
    network: Network,
    entry: Entry,
    draw: int,
    shared: Sequence[Shared],
    starts: Sequence[np.ndarray | None],
    targets: TargetSet,
    bench: Bench,
) -> list[Answer]:
    """Answers of one attack to all batches of a draw."""
    usable = [i for i, one in enumerate(shared) if not isinstance(one, Failed)]
    found = network.answers(
        entry,
        draw,
        [one for one in shared if not isinstance(one, Failed)],
        [signed(targets.labels[i], bench.margin) for i in usable],
        [run_seed(draw, i) for i in usable],
        [starts[i] for i in usable],
    )
    by_place: Mapping[int, Answer] = dict(zip(usable, found, strict=True))
    # Where there is no gradient, `shared` holds why.
    return [by_place[i] if i in by_place else shared[i] for i in range(len(shared))]  # type: ignore[misc]


def _start(answer: Answer) -> np.ndarray | None:
    """What a closed form found, as a start (1, 1, C, H, W) of what goes on from there."""
    return answer.images[None] if isinstance(answer, Reconstruction) else None


def _run(
    image: int, draw: int, answer: Answer, targets: TargetSet, judge: Judge
) -> tuple[Run, Score | None]:
    if isinstance(answer, Failed):
        return _none(image, draw, answer.reason, "failed"), None
    pixels = np.clip(targets.pixels(answer.images), 0.0, 1.0)
    score = judge.score(pixels, targets.indices[image])
    return record(image, draw, score), score


def record(image: int, draw: int, score: Score) -> Run:
    """The run of an answer with this score."""
    return Run(
        image=image,
        seed=draw,
        status="ok",
        reason="",
        psnr=score.psnr,
        ssim=score.ssim,
        matched=score.matched,
        readable=score.readable,
    )


def _none(image: int, draw: int, reason: str, status: str = "not_applicable") -> Run:
    return Run(
        image=image,
        seed=draw,
        status=status,  # type: ignore[arg-type]
        reason=reason,
        psnr=None,
        ssim=None,
        matched=False,
        readable=False,
    )


def failed(image: int, draw: int, reason: str) -> Run:
    """A run that was tried and gave nothing."""
    return _none(image, draw, reason, "failed")
