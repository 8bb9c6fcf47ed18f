"""Verdict of an audit: grade, ranking, and the sentences of ``workflow/report/verdict.j2``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import betainc

from gradleak.reading.layer_names import spoken
from gradleak.reporting import pages
from gradleak_audit.attack import trials
from gradleak_audit.attack.attack_suite import AGAINST, HONEST
from gradleak_audit.attack.trials import Best
from gradleak_audit.mitigate.mitigation_effect import PAIRS, grades
from gradleak_audit.result import (
    GRADES,
    NONE,
    QUICK,
    AttackPart,
    Case,
    Change,
    Grade,
    Run,
    Setting,
    StructurePart,
    Verdict,
    Worst,
)

TEMPLATE = "verdict.j2"
# Significance level for matches over all attacks.
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Facts:
    """Facts the verdict needs besides cases."""

    setting: Setting
    structure: StructurePart
    # Number of images in the pool that a reconstruction from its class alone could show: all of
    # them if the weights do not encode classes, or classes say nothing about the images.
    rivals: int
    fresh: bool  # whether seeds initialize the weights, rather than the attacks' noise
    stand_in: bool  # whether the images replace the user's
    notes: tuple[str, ...] = ()  # further limits, sentences
    substituted: str = ""  # operations that attacks replaced, sentences


def verdict(
    cases: Sequence[Case],
    attacks: Sequence[AttackPart],
    changes: Sequence[Change],
    best: Best,
    facts: Facts,
) -> Verdict:
    """Put the result into words; `best` has an honest server's reconstructions without change."""
    honest = {part.id for part in attacks if part.chapter == HONEST}
    plain = [
        case for case in cases if case.change == NONE and case.attack in honest and case.attempted
    ]
    chance = [p_value(case, facts) for case in plain]
    reached = grades(plain)
    by_luck = min(1.0, len(plain) * min(chance, default=1.0))
    # Of attacks that match as many, the one that comes nearest.
    likeliest = max(
        plain,
        key=lambda case: (-p_value(case, facts), max(r.rank for r in case.runs)),
        default=None,
    )
    beyond = len(matched(likeliest.runs)) if likeliest and by_luck < SIGNIFICANT else 0
    by_matches: Grade = "partly" if beyond else "not shown"
    grade = max([*reached, by_matches], key=GRADES.index)
    order, by_id = ranking(changes), {change.id: change for change in changes}
    first = by_id[order[0]] if order else None
    told = vars(facts) | {"cases": cases, "attacks": attacks, "changes": changes, "plain": plain}
    told |= {"honest": honest, "reached": reached, "grade": grade, "by_luck": by_luck}
    # The smallest p that any matches could have.
    told |= {"least_p": min(1.0, len(plain) * _tail(facts.setting.count, facts)), "first": first}
    told |= {"significant": SIGNIFICANT, "pairs": PAIRS, "quick": QUICK}
    told |= {"parts": {part.id: part for part in attacks}, "unchanged": by_id.get(NONE)}
    told |= {"ground": _ground(plain, grade) or (likeliest and _ground([likeliest]))}
    told |= {"lost": first and _lost(first), "matched": matched, "spoken": spoken}
    told |= {"against": AGAINST, "scoring": trials}
    words = pages.template(TEMPLATE).make_module(told)

    def lines(name: str) -> tuple[str, ...]:
        text = getattr(words, name)().split("\n")
        return tuple(" ".join(line.split()) for line in text if line.strip())

    own: dict[str, Any] = {key: lines(key) for key in ("rests_on", "limits")}
    own |= {key: " ".join(lines(key)) for key in ("sentence", "advice", "malicious")}
    return Verdict(grade=grade, matched=beyond, **own, worst=_worst(best), ranking=order)


def p_value(case: Case, facts: Facts) -> float:
    """Probability that chance alone matches as many gradients: P(X ≥ k), X ~ Bin(n, p).

    A gradient is matched if the reconstruction under any seed is, so p = seeds · reconstructions ·
    K / P (a union bound) with K images in a batch, K reconstructions, and P images to choose from;
    only those of the same class if the weights may encode classes. All images under attack are
    among the P, so that a constant reconstruction matches at most one.
    """
    return _tail(len(matched(case.runs)), facts)


def _tail(k: int, facts: Facts) -> float:
    n, batch = facts.setting.count, facts.setting.batches[0]
    p = min(1.0, facts.setting.seeds * batch * batch / facts.rivals)
    if k == 0 or p >= 1.0:
        return 1.0
    return float(betainc(k, n - k + 1, p))


def matched(runs: Sequence[Run]) -> set[int]:
    """Batches matched under some seed."""
    return {run.image for run in runs if run.matched}


def _ground(cases: Sequence[Case], grade: Grade | None = None) -> dict[str, Any] | None:
    """Attack with most gradients of a grade, or matched ones if it is None, and how near it came.

    None if no run has the grade.
    """
    found = []
    for case in cases:
        runs = [run for run in case.runs if (run.grade == grade if grade else run.matched)]
        if runs:
            own: dict[str, Any] = {"attack": case.attack, "gradients": len({r.image for r in runs})}
            for key in ("ssim", "smoothed", "psnr"):
                known = [value for run in runs if (value := getattr(run, key)) is not None]
                own[key] = max(known, default=None)
            found.append(((own["gradients"], max(run.rank for run in runs)), own))
    return max(found, key=lambda one: one[0])[1] if found else None


def ranking(changes: Sequence[Change]) -> tuple[str, ...]:
    """Changes that were shown to help, by remaining leak, then by price; best first."""

    def key(change: Change) -> tuple[float, ...]:
        price, leak = change.price, change.leak
        assert leak is not None
        # Below a tenth of SSIM, prices decide.
        near = 0.0 if change.ssim is None else round(change.ssim, 1)
        sizes = (1.0, 1.0) if price is None else (price.multiply_adds, price.parameters)
        return leak, near, _lost(change) or 0.0, *sizes

    helpful = [change for change in changes if change.effect == "helps"]
    return tuple(change.id for change in sorted(helpful, key=key))


def _lost(change: Change) -> float | None:
    price = change.price
    if price is None or price.accuracy is None or price.baseline is None:
        return None
    return price.baseline - price.accuracy


def _worst(best: Best) -> Worst | None:
    found = [
        (score.rank, Worst(attack=name, image=image, seed=draw, psnr=score.psnr, ssim=score.ssim))
        for name, own in best.answers.items()
        for image, (score, draw) in own.items()
    ]
    return max(found, key=lambda one: one[0], default=(None, None))[1]
