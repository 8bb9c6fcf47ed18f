"""Effect of a change on the leak, paired by gradient with the unchanged network."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from scipy.stats import binom

from gradleak.errors import NumericsError
from gradleak_audit.attack.mitigations import Variant
from gradleak_audit.attack.trials import Bench
from gradleak_audit.result import GRADES, NONE, Case, Change, Effect, Grade, Price, Run

# Significance level for a difference.
SHOWN = 0.01
# Fewest pairs on which a sign test can reach it: twice 2^-n is below.
PAIRS = next(n for n in count(1) if 2.0 ** (1 - n) < SHOWN)
# Differences of SSIM, and of PSNR in dB, too small to be visible.
SEEN_SSIM, SEEN_PSNR = 0.05, 1.0
# Number of a batch's first image, and seed number.
Pair = tuple[int, int]


@dataclass(frozen=True)
class Leak:
    """Gradients by the best grade that honest servers' attacks reached under one change."""

    leak: float | None  # share of gradients read, in part or in full; None if all attacks failed
    read: int
    partly: int
    gradients: int
    matched: int  # gradients matched by the attack that matched most
    # The most successful attack; among equals the one with the closest reconstructions.
    attack: str


def summary(variant: Variant, cases: Sequence[Case], price: Price | None, note: str) -> Change:
    """Summarise a change, with its price and effect on the gradient, from all honest cases."""
    own = [case for case in cases if case.change == variant.id and case.attempted]
    found, reason = leak(own), variant.reason
    if not reason and not own:
        reason = "No attack applies to it, so it tells nothing."
    elif own and found.leak is None:
        failures = Counter(run.reason for case in own for run in case.runs)
        reason = f"No attack gave a reconstruction: {failures.most_common(1)[0][0]}"
    done: Effect = ""
    p: float | None = None
    if found.leak is not None and variant.id != NONE:
        done, p = effect([case for case in cases if case.change == NONE], own)
    named: dict[str, Any] = {key: getattr(variant, key) for key in ("id", "title", "kind")}
    ssim = max((case.ssim.mean for case in own if case.ssim is not None), default=None)
    told: dict[str, Any] = {"reason": reason, "note": note, "price": price}
    return Change(**named, **told, **vars(found), ssim=ssim, effect=done, p=p)


def withheld(variant: Variant, bench: Bench) -> str:
    """Describe how much of a gradient Soteria altered: values it prunes may be 0 already."""
    if variant.kind != "soteria" or variant.network is None:
        return ""
    given = 0, *bench.batch(variant.batch)
    try:
        plain = variant.network.share(*given, None, 0)
        shared = variant.network.share(*given, variant.defence, 0)
    except NumericsError:
        return ""
    altered = sum(int((shared[name] != value).sum()) for name, value in plain.items())
    numbers = f"{sum(value.size for value in plain.values()):,} numbers of the first gradient"
    return f"It altered {altered:,} of the {numbers}; what else it withholds was zero already."


def leak(cases: Sequence[Case]) -> Leak:
    """Compute the leak of one change from its honest cases; failed runs count as not shown."""
    tried = [case for case in cases if case.attempted]

    def success(case: Case) -> tuple[float, ...]:
        means = (-1.0 if spread is None else spread.mean for spread in (case.ssim, case.psnr))
        shown = [{r.image for r in case.runs if r.rank[0] >= least} for least in (2, 1)]
        return *map(len, shown), *means

    worst, found = max(tried, key=success, default=None), grades(tried)
    read, partly = found.count("read"), found.count("partly")
    share = (read + partly) / len(found) if any(case.ok for case in tried) else None
    hits = max((len({r.image for r in case.runs if r.matched}) for case in tried), default=0)
    return Leak(share, read, partly, len(found), hits, worst.attack if worst else "")


def grades(cases: Sequence[Case]) -> list[Grade]:
    """Return the best grade of each gradient, over attacks and seeds."""
    best: dict[int, Grade] = {}
    for run in (run for case in cases for run in case.runs):
        best[run.image] = max(best.get(run.image, run.grade), run.grade, key=GRADES.index)
    return list(best.values())


def effect(before: Sequence[Case], after: Sequence[Case]) -> tuple[Effect, float | None]:
    """Return whether a change helps, and the p-value of the difference.

    Exact one-sided sign tests over pairs of gradient and seed: one on the best grade, one on the
    quality of the best reconstruction (SSIM, or PSNR for images smaller than SSIM's window), where
    invisible differences are ties. Twice the smaller p must be below `SHOWN`. The change is
    inconclusive if the attack that was closest before failed in at least half of the pairs and no
    other came as close: a failed computation says little about the gradient. Cases are those of
    honest servers, on the unchanged network and under the change.
    """
    old, new = _best(before), _best(after)
    pairs = [(old[pair][1], new[pair][1]) for pair in sorted(old.keys() & new.keys())]
    if not pairs:
        return "inconclusive", None
    runs = [(case.attack, run) for case in after for run in case.runs]
    broken = {(name, run.image, run.seed) for name, run in runs if run.status == "failed"}
    lost = [
        pair
        for pair, (attack, run) in old.items()
        if (attack, *pair) in broken and (pair not in new or _rank(new[pair][1]) < _rank(run))
    ]
    if 2 * len(lost) >= len(old):
        return "inconclusive", None
    near = [_nearer(was, now) for was, now in pairs]
    fewer = sum(was.rank[0] > now.rank[0] for was, now in pairs)
    more = sum(was.rank[0] < now.rank[0] for was, now in pairs)
    less, closer = near.count(-1), near.count(1)
    helps = 2 * min(_by_chance(fewer, more), _by_chance(less, closer))
    harms = 2 * min(_by_chance(more, fewer), _by_chance(closer, less))
    if fewer >= more and helps < SHOWN:
        return "helps", helps
    if more >= fewer and harms < SHOWN:
        return "worse", harms
    none: Effect = "too few pairs" if len(pairs) < PAIRS else "no difference shown"
    return none, min(1.0, helps, harms)


def _by_chance(wins: int, losses: int) -> float:
    """P(X ≥ wins), X ~ Bin(wins + losses, 1/2)."""
    return float(binom.sf(wins - 1, wins + losses, 0.5))


def _best(cases: Sequence[Case]) -> dict[Pair, tuple[str, Run]]:
    out: dict[Pair, tuple[str, Run]] = {}
    for case in cases:
        for run in case.runs:
            pair = run.image, run.seed
            if run.status == "ok" and (pair not in out or _rank(run) > _rank(out[pair][1])):
                out[pair] = case.attack, run
    return out


def _nearer(before: Run, after: Run) -> int:
    """Sign of the change in quality; 0 if it is invisible."""
    least = SEEN_PSNR if before.ssim is None else SEEN_SSIM
    change = _nearness(after) - _nearness(before)
    return 0 if abs(change) < least else 1 if change > 0 else -1


def _nearness(run: Run) -> float:
    assert run.psnr is not None
    return run.psnr if run.ssim is None else run.ssim


def _rank(run: Run) -> tuple[int, float]:
    return run.rank[0], _nearness(run)
