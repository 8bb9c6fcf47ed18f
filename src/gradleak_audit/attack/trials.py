"""Run every attack on every change and score the reconstructions."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from skimage.restoration import denoise_tv_chambolle

from gradleak.attacks.runner import run_seed
from gradleak.client.defences.base import noise_seed
from gradleak.data.targets import TargetSet
from gradleak.errors import NumericsError
from gradleak.runtime.progress import progress
from gradleak.scoring.metrics import image as metrics
from gradleak_audit.attack.attack_suite import ANALYTIC, CLOSED, HONEST, MASKED, Entry
from gradleak_audit.attack.mitigations import Variant
from gradleak_audit.attack.networks import Shared
from gradleak_audit.attack.samples import Samples
from gradleak_audit.result import Case, Grade, Run, Spread, rank

LOG = logging.getLogger("gradleak")


@dataclass(frozen=True)
class Threshold:
    """SSIM (as it is or smoothed), or PSNR in dB, from which what is matched has a grade."""

    ssim: float
    psnr: float


# By matching among 500 images, `python -m benchmarks.grades`, docs/audit.md.
THRESHOLDS: dict[Grade, Threshold] = {"read": Threshold(0.5, 20.0), "partly": Threshold(0.3, 15.0)}
# The best uniform colour has a high SSIM and PSNR with a dull image, and the mean of all has with a
# digit. So what is read has an error (1 − SSIM or MSE) of at most these shares of theirs. Digits
# recognisably reconstructed by Inverting Gradients in LeNet have 0.64 to 0.89 of the mean's. For a
# part that is read by its PSNR only colours count: the mean matches one image of all.
OF_COLOUR, OF_MEAN = 0.5, 0.9
# Side of SSIM's window.
WINDOW = 7
# Weights of the total variation by which an attacker may smooth what an attack found: eyes look
# through noise that SSIM counts in full.
SMOOTHED = (0.1, 0.2)


@dataclass(frozen=True)
class Score:
    """Score of the reconstructed image that is closest to an image of the batch."""

    psnr: float  # best over the batch's images, dB
    ssim: float | None  # likewise; None below 7x7
    smoothed: float | None  # best SSIM of matched ones after smoothing; None if none is matched
    matched: bool  # whether one of the batch is the image that a reconstruction is most like
    grade: Grade  # best over the reconstructions and the batch's images
    picture: np.ndarray  # best reconstruction (C, H, W) by grade, then SSIM and PSNR

    @property
    def rank(self) -> tuple[int, float, float]:
        """Sort key, larger for better reconstructions."""
        return rank(self.grade, self.ssim, self.psnr)


class Judge:
    """Scores reconstructions against a `pool` (P, C, H, W) in [0, 1] of images."""

    def __init__(self, pool: np.ndarray) -> None:
        self.pool = pool
        self._forms = _standardised(pool)
        self._least = cache(self._find_least)

    def score(self, answers: np.ndarray, batch: np.ndarray) -> Score:
        """Score reconstructions (K', C, H, W) in [0, 1] of a batch with image numbers (K,)."""
        pairs = [(answer, int(number)) for answer in answers for number in batch]
        psnrs = [metrics.psnr(self.pool[number], answer) for answer, number in pairs]
        ssims = [self.ssim(number, answer) for answer, number in pairs]
        alike = [self.correlations(answer) for answer in answers for _ in batch]
        hits = [number in matches(found) for (_, number), found in zip(pairs, alike, strict=True)]
        grades: list[Grade] = ["not shown"] * len(pairs)
        smoothed = [self.smoothed(k, a) if hits[i] else None for i, (a, k) in enumerate(pairs)]
        for i, (_, number) in enumerate(pairs):
            if hits[i]:
                grades[i] = self._grade(number, psnrs[i], _largest([ssims[i], smoothed[i]]))
        ranks = [rank(*one) for one in zip(grades, ssims, psnrs, strict=True)]
        best = max(range(len(pairs)), key=ranks.__getitem__)
        known = _largest(ssims), _largest(smoothed)
        return Score(max(psnrs), *known, any(hits), grades[best], pairs[best][0])

    def smoothed(self, number: int, answer: np.ndarray) -> float | None:
        """SSIM with image `number` of a reconstruction (C, H, W), smoothed by the better weight."""
        return _largest([self.ssim(number, look) for look in smooth(answer)])

    def correlations(self, answer: np.ndarray) -> np.ndarray:
        """Correlation (P,) of a reconstruction with each image over all values; 0 for uniform ones.

        It does not depend on brightness and contrast, which attacks often miss.
        """
        return np.asarray(self._forms @ _standardised(answer[None])[0])

    def _grade(self, number: int, psnr: float, ssim: float | None) -> Grade:
        """Grade of a reconstruction that is matched."""
        for grade, (least_psnr, least_ssim) in self._least(number).items():
            if psnr >= least_psnr or (ssim is not None and ssim >= least_ssim):
                return grade
        return "not shown"

    def _find_least(self, number: int) -> dict[Grade, tuple[float, float]]:
        """Least PSNR and SSIM of each grade for reconstructions of image `number`, best first."""
        original = self.pool[number]
        flat = original.reshape(len(original), -1)
        ends = np.zeros(len(flat)), np.ones(len(flat))
        colours = (flat.mean(1), np.median(flat, axis=1), *ends)
        blank = [(np.broadcast_to(c[:, None, None], original.shape), OF_COLOUR) for c in colours]
        blank.append((self.pool.mean(0), OF_MEAN))
        read, partly = THRESHOLDS["read"], THRESHOLDS["partly"]
        psnr, ssim, least = read.psnr, read.ssim, partly.psnr
        for one, share in blank:
            beyond = metrics.psnr(original, one) - 10.0 * float(np.log10(share))
            psnr, least = max(psnr, beyond), least if share == OF_MEAN else max(least, beyond)
            if (found := self.ssim(number, one)) is not None:
                ssim = max(ssim, 1.0 - share * (1.0 - found))
        return {"read": (psnr, ssim), "partly": (least, partly.ssim)}

    def ssim(self, number: int, answer: np.ndarray) -> float | None:
        """SSIM of a reconstruction (C, H, W) with image `number`; None below SSIM's window."""
        has_window = min(self.pool.shape[2:]) >= WINDOW
        return metrics.ssim(self.pool[number], answer) if has_window else None


def smooth(answer: np.ndarray) -> list[np.ndarray]:
    """Reconstruction (C, H, W) smoothed by total variation with each weight."""
    return [denoise_tv_chambolle(answer, weight, channel_axis=0) for weight in SMOOTHED]


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def matches(correlations: np.ndarray) -> set[int]:
    """Numbers of the image with the largest correlation (P,), and of its duplicates."""
    least = max(float(correlations.max()) - 1e-9, 1e-9)
    return set(np.flatnonzero(correlations >= least).tolist())


def _standardised(images: np.ndarray) -> np.ndarray:
    """Values (N, C·H·W) of images (N, C, H, W) with mean 0 and length 1; 0 for uniform ones."""
    flat = images.reshape(len(images), -1)
    flat = flat - flat.mean(1, keepdims=True)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    return flat / np.where(length > 1e-9, length, np.inf)


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

    def record(self, attack: str, image: int, draw: int, found: Score | str) -> Run:
        """Return a run; keep its reconstruction unless it failed or a better one is known."""
        if isinstance(found, Score):
            known = self.answers.setdefault(attack, {})
            if image not in known or found.rank > known[image][0].rank:
                known[image] = found, draw
        return record(image, draw, found)

    @property
    def nearest(self) -> tuple[str, int, np.ndarray] | None:
        """Attack, image number and pixels of the reconstruction that comes nearest."""
        every = [
            (score.rank, attack, image, score.picture)
            for attack, found in self.answers.items()
            for image, (score, _) in found.items()
        ]
        return max(every, key=lambda one: one[0])[1:] if every else None

    @property
    def pictures(self) -> dict[str, dict[int, np.ndarray]]:
        """Pixels in [0, 1] (C, H, W) of the reconstructions."""
        return {
            attack: {image: score.picture for image, (score, _) in found.items()}
            for attack, found in self.answers.items()
        }


def cases(variant: Variant, entries: Iterable[Entry], bench: Bench) -> tuple[list[Case], Best]:
    """Run all attacks of an honest server on one change; return their cases and the best ones."""
    network, chosen = variant.network, [entry for entry in entries if entry.chapter == HONEST]
    assert network is not None
    reasons = {entry.id: why_not(entry, variant) for entry in chosen}
    targets, judge, best = bench.targets(variant.batch), Judge(bench.pool()), Best()
    runs: dict[str, list[Run]] = {entry.id: [] for entry in chosen}
    for draw in progress(range(bench.seeds), "seeds"):
        shared = [_shared(variant, draw, number, bench) for number in range(bench.count)]
        for entry in progress(chosen, "attacks"):
            if why := reasons[entry.id]:
                none = (record(i, draw, why, "not_applicable") for i in range(bench.count))
                runs[entry.id] += none
                continue
            given = [one for one in shared if isinstance(one, Shared)]
            answers = iter(network.answers(entry, draw, given))
            for image, one in enumerate(shared):
                found: Score | str
                answer = one if isinstance(one, str) else next(answers)
                if isinstance(answer, str):
                    found = answer
                else:
                    if entry.id == CLOSED and variant.batch == 1 and isinstance(one, Shared):
                        # Other attacks start from what a closed-form attack found.
                        shared[image] = replace(one, start=answer.images[None])
                    pixels = np.clip(targets.pixels(answer.images), 0.0, 1.0)
                    found = judge.score(pixels, targets.indices[image])
                runs[entry.id].append(best.record(entry.id, image, draw, found))
    out = [case(variant.id, entry.id, variant.batch, runs[entry.id]) for entry in chosen]
    for done in out:
        if done.attempted:
            amounts = done.read, done.partly, done.attempted, done.ok
            told = "%s, %s: %d read, %d in part, of %d, %d ok"
            LOG.info(told, variant.id, done.attack, *amounts)
    return out, best


def why_not(entry: Entry, variant: Variant) -> str:
    """Reason why an attack does not apply to a change; empty if it does."""
    assert variant.network is not None
    if entry.id == MASKED and variant.kind != "soteria":
        return "Nothing of the gradient is withheld."
    if entry.id == ANALYTIC and variant.batch != 1:
        return "It reads the gradient of one image, and this is that of a batch."
    return variant.network.reason(entry)


def case(change: str, attack: str, batch: int, runs: Sequence[Run]) -> Case:
    """Count and summarise runs; inapplicable ones do not count as attempted."""
    ok = [run for run in runs if run.status == "ok"]
    own: dict[str, Any] = {"change": change, "attack": attack, "batch": batch, "ok": len(ok)}
    own["attempted"] = sum(run.status != "not_applicable" for run in runs)
    own["matched"] = sum(run.matched for run in runs)
    own |= {grade: sum(run.grade == grade for run in runs) for grade in THRESHOLDS}
    for key in ("psnr", "ssim"):
        known = [value for value in (getattr(run, key) for run in ok) if value is not None]
        own[key] = None
        if known:
            own[key] = Spread(mean=float(np.mean(known)), low=min(known), high=max(known))
    return Case(**own, runs=tuple(runs))


def record(image: int, draw: int, found: Score | str, status: str = "failed") -> Run:
    """Return the run of a scored reconstruction, or of a failure with its reason."""
    own: dict[str, Any] = {"status": status, "reason": found, "psnr": None, "ssim": None}
    own |= {"smoothed": None, "matched": False, "grade": "not shown"}
    if isinstance(found, Score):
        kept = ("psnr", "ssim", "smoothed", "matched", "grade")
        own = {key: getattr(found, key) for key in kept}
        own |= {"status": "ok", "reason": ""}
    return Run(image=image, seed=draw, **own)


def _shared(variant: Variant, draw: int, number: int, bench: Bench) -> Shared | str:
    assert variant.network is not None
    images, labels = bench.batch(variant.batch, number)
    given = draw, images, labels, variant.defence, noise_seed(draw, number)
    try:
        return Shared(variant.network.share(*given), labels, run_seed(draw, number))
    except NumericsError as error:
        return str(error)
