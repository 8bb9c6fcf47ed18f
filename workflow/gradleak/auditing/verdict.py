"""What an audit comes to: grade, sentence, what they rest on, limits, and a ranking of changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import betainc

from gradleak.auditing.cases import Best
from gradleak.auditing.changes import NONE
from gradleak.auditing.menu import AGAINST, HONEST, MASKED, UNLOCK
from gradleak.auditing.result import AttackPart, Case, Change, Grade, Run, Verdict, Worst
from gradleak.auditing.scoring import OF_COLOUR, OF_MEAN, READABLE_PSNR, READABLE_SSIM
from gradleak.auditing.telling import spoken

# Probability of as many matches by chance, over all attacks, below which they count.
SIGNIFICANT = 0.05
# Changes of the architecture.
ALTERED = ("lock", "cut", "fewer", "strided")


@dataclass(frozen=True)
class Facts:
    """What the words need beside cases.

    Attributes
    ----------
    count, seeds, batch, pool, rivals
        Gradients, draws, images that share one, images that answers are told from, and how many
        of these an answer of the right class can be: all of them where weights know no classes.
    fresh
        Whether draws are of fresh weights; else of the search's own noise.
    images
        Where the images come from, in words; `stand_in` if they are not the user's.
    critical, index
        Layer of the largest RA-i, and RA-i; empty and None where nothing is readable.
    notes
        Further limits, sentences.
    """

    count: int
    seeds: int
    batch: int
    pool: int
    rivals: int
    fresh: bool
    images: str
    stand_in: bool
    critical: str
    index: int | None
    notes: tuple[str, ...] = ()


def verdict(
    cases: Sequence[Case],
    attacks: Sequence[AttackPart],
    changes: Sequence[Change],
    best: Best,
    facts: Facts,
) -> Verdict:
    """Put the result into words.

    Parameters
    ----------
    cases
        Of all changes and both chapters.
    attacks, changes
        The menu with reasons, and what each change did.
    best
        Best answers on the unchanged network under an honest server.
    facts
        Amounts and the like.
    """
    parts = {part.id: part for part in attacks}
    plain = [
        case
        for case in cases
        if case.change == NONE and parts[case.attack].chapter == HONEST and case.attempted
    ]
    mkor = [case for case in cases if parts[case.attack].chapter != HONEST]
    chance = [p_value(case, facts) for case in plain]
    read = {run.image for case in plain for run in case.runs if run.readable}
    by_luck = min(1.0, len(plain) * min(chance, default=1.0))
    grade: Grade = "leaks" if read else "partly" if by_luck < SIGNIFICANT else "not shown"
    return Verdict(
        grade=grade,
        sentence=_sentence(grade, len(read), plain, chance, facts),
        advice=_advice(changes),
        malicious=_malicious(mkor, attacks, facts),
        rests_on=_rests_on(plain, parts, facts, by_luck),
        limits=_limits(cases, plain, attacks, changes, facts),
        worst=_worst(best),
        ranking=ranking(changes),
    )


def p_value(case: Case, facts: Facts) -> float:
    """Probability that chance alone matches as many gradients: P(X ≥ k), X ~ Bin(n, p).

    A gradient counts as matched if any draw's answer is, so p = seeds · answers · K / P (a union
    bound) with K images in a batch, as many answers, and P images to choose from; with weights that
    may know classes, P are those of the same class. All images under attack are among the P, so
    that an answer that is always the same matches one of them at most.
    """
    n, k = facts.count, len(matched(case.runs))
    answers = facts.batch
    p = min(1.0, facts.seeds * answers * facts.batch / facts.rivals)
    if k == 0 or p >= 1.0:
        return 1.0
    return float(betainc(k, n - k + 1, p))


def matched(runs: Sequence[Run]) -> set[int]:
    """Batches with a draw whose answer matched."""
    return {run.image for run in runs if run.matched}


def ranking(changes: Sequence[Change]) -> tuple[str, ...]:
    """Changes that were shown to help, by what is left of the leak, then by price; best first."""

    def key(change: Change) -> tuple[float, float, float, float, float]:
        price = change.price
        work = 1.0 if price is None else price.multiply_adds
        size = 1.0 if price is None else price.parameters
        assert change.leak is not None
        # Below a tenth of SSIM, prices decide.
        near = 0.0 if change.ssim is None else round(change.ssim, 1)
        return change.leak, near, _lost(change) or 0.0, work, size

    helpful = [change for change in changes if change.effect == "helps"]
    return tuple(change.id for change in sorted(helpful, key=key))


def _lost(change: Change) -> float | None:
    """Accuracy that a change costs; None where it was not measured."""
    price = change.price
    if price is None or price.accuracy is None or price.baseline is None:
        return None
    return price.baseline - price.accuracy


def _advice(changes: Sequence[Change]) -> str:
    """The change that helps most, with its effect and price."""
    order = ranking(changes)
    tried = [change for change in changes if change.kind != "none" and change.leak is not None]
    if not tried:
        return "No change could be tried."
    if not order:
        each = "The one change was not" if len(tried) == 1 else "None of the changes was"
        return f"{each} shown to help: with more gradients, a smaller effect would show."
    (plain,) = [change for change in changes if change.kind == "none"]
    (first,) = [change for change in changes if change.id == order[0]]
    lost = _lost(first)
    if lost is None:
        cost = "what it costs in accuracy was not measured"
    else:
        cost = f"it costs {max(0.0, lost):.1%} of accuracy in a short training"
    if plain.read > first.read:
        done = (
            f"{plain.read} of {plain.gradients} gradients could be read without it, {first.read} "
            f"of {first.gradients} with it"
        )
    else:
        done = (
            f"As many gradients could be read with it ({first.read} of {first.gradients}), but "
            "answers were less near"
        )
    return f"Of what was tried, this helped most: {first.title}. {done}; {cost}."


def _sentence(
    grade: Grade, read: int, plain: Sequence[Case], chance: Sequence[float], facts: Facts
) -> str:
    n = facts.count
    hits = len({image for case in plain for image in matched(case.runs)})
    others = facts.pool - facts.batch
    points = f" {hits} of {n} led to the right picture among {others} others."
    if not any(case.ok for case in plain):
        return (
            "No attack gave an answer at all, so nothing was shown either way: see the reasons "
            "given for each attack."
        )
    if grade == "leaks":
        if facts.batch == 1:
            return (
                f"From the gradient that one step on one picture shares, {read} of {n} pictures "
                f"could be read again by {_who(plain)};{points}"
            )
        return (
            f"From {read} of {n} gradients, each shared by {facts.batch} pictures, at least one "
            f"picture could be read again by {_who(plain)};{points}"
        )
    if grade == "partly":
        best = plain[min(range(len(plain)), key=lambda k: chance[k])]
        hits = len(matched(best.runs))
        return (
            f"{_none(n)} a picture that can be read, but {hits} of {n} gave one that "
            f"is nearer to the right picture than to any of {facts.pool - facts.batch} others: "
            "more than chance would, so something of the pictures leaks."
        )
    return (
        f"{_none(n)} a picture that can be read, or that points to the right one more often than "
        "chance would; that is no proof that no other attack could."
    )


def _none(tries: int) -> str:
    return "The one try did not give" if tries == 1 else f"None of {tries} tries gave"


def _who(plain: Sequence[Case]) -> str:
    readers = sum(case.readable > 0 for case in plain)
    each = "the attack" if len(plain) == 1 else f"{readers} of {len(plain)} attacks"
    return f"{each} that {'was' if len(plain) == 1 else 'were'} tried"


def _malicious(mkor: Sequence[Case], attacks: Sequence[AttackPart], facts: Facts) -> str:
    """The other chapter's own sentence."""
    if not mkor:
        (part,) = [part for part in attacks if part.chapter != HONEST]
        return f"A server that sends weights of its own was not tried. {part.reason}"
    (case,) = mkor
    images = {run.image for run in case.runs}
    read = {run.image for run in case.runs if run.readable}
    if not read:
        return (
            "A server that sends weights of its own (MKOR) could read none of the "
            f"{len(images)} pictures that share a gradient."
        )
    return (
        f"A server that sends weights of its own (MKOR) could read {len(read)} of {len(images)} "
        f"pictures again from one gradient that they share{_in_draws(facts)}."
    )


def _in_draws(facts: Facts) -> str:
    return "" if facts.seeds == 1 else f", in at least one of {facts.seeds} draws"


def _rests_on(
    plain: Sequence[Case], parts: dict[str, AttackPart], facts: Facts, by_luck: float
) -> tuple[str, ...]:
    names = [f"{parts[case.attack].title} ({parts[case.attack].settings})" for case in plain]
    draws = "draws of fresh weights" if facts.fresh else "starts of each search, weights as given"
    if facts.seeds == 1:
        draws = "draw of fresh weights" if facts.fresh else "start of each search, weights as given"
    each = "one picture" if facts.batch == 1 else f"{facts.batch} pictures"
    gradients = "1 gradient" if facts.count == 1 else f"{facts.count} gradients"
    out = [
        f"{gradients} of {each}, {facts.seeds} {draws}; pictures: {facts.images}.",
        f"Attacks on what an honest server gets: {'; '.join(names) if names else 'none applies'}.",
        "A picture counts as read if in any draw an answer's SSIM is at least "
        f"{READABLE_SSIM:g} or its PSNR at least {READABLE_PSNR:g} dB, and its error at most "
        f"{OF_COLOUR:.0%} of that of the best picture of one colour, and {OF_MEAN:.0%} of that of "
        "the mean of all pictures.",
        f"Matches among {facts.pool} pictures: p = {by_luck:.2g} over all attacks tried (exact "
        "binomial test, Bonferroni).",
    ]
    if facts.index is not None:
        out.append(_counted(facts.critical, facts.index))
    return tuple(out)


def _counted(layer: str, index: int) -> str:
    """What R-GAP's rank analysis says."""
    if index > 0:
        return (
            f"By counting, {spoken(layer)} has {index:,} more unknowns than constraints (RA-i), "
            "more than any other layer; no closed form finds what enters it."
        )
    return (
        "By counting, no layer has more unknowns than constraints (the largest RA-i is "
        f"{_signed(index)}, at {spoken(layer)}), so that nothing rules out an exact answer."
    )


def _signed(number: int) -> str:
    """With a minus sign, as the page's tables have it."""
    return f"{number:,}".replace("-", "−")


def _limits(
    cases: Sequence[Case],
    plain: Sequence[Case],
    attacks: Sequence[AttackPart],
    changes: Sequence[Change],
    facts: Facts,
) -> tuple[str, ...]:
    out = [
        "An attack that failed is no proof of safety: others exist, and these could run longer.",
        _few(facts.count),
        "The threshold of readable was chosen, not measured on people, who may see more: look at "
        "the pictures below.",
        "The attacker is told the classes of the pictures, which gradients of one picture mostly "
        "give away.",
    ]
    untried: dict[str, list[str]] = {}
    for part in attacks:
        if part.reason and part.chapter == HONEST and part.id not in (UNLOCK, MASKED):
            untried.setdefault(part.reason, []).append(_short(part))
    for reason, names in untried.items():
        out.append(f"{_listed(names)} {_was(names)} not tried. {reason}")
    lost = sum(case.attempted - case.ok for case in plain)
    if lost:
        tried = sum(case.attempted for case in plain)
        out.append(f"{lost} of {tried} runs ended without an answer; they count as not read.")
    if facts.fresh:
        out.append("Weights are fresh: a trained network may leak more, or less.")
    elif any(change.kind in ALTERED and change.leak is not None for change in changes):
        out.append(
            "Where a change alters layers, these were drawn afresh beside the weights that were "
            "given, for the attacks and before the short training: such rows mix both."
        )
    if facts.stand_in:
        out.append("The pictures are stand-ins, not yours; yours may be easier to read, or harder.")
    fewer = _fewer_attacks(cases, plain, attacks, changes)
    return (*out, *facts.notes, *fewer, *_unanswered(cases, attacks, changes))


def _few(gradients: int) -> str:
    if gradients == 1:
        return "One gradient is little to go by: shares are rough."
    return f"{gradients} gradients are few: shares of them are rough."


def _fewer_attacks(
    cases: Sequence[Case],
    plain: Sequence[Case],
    attacks: Sequence[AttackPart],
    changes: Sequence[Change],
) -> list[str]:
    """Changes under which attacks fall away that the unchanged network allows."""
    allowed = {case.attack for case in plain}
    out = []
    for change in changes:
        own = [case for case in cases if case.change == change.id and case.attack in allowed]
        gone = [case.attack for case in own if not case.attempted]
        if gone and change.leak is not None:
            verb = "does" if len(gone) == 1 else "do"
            names = _listed([_short(part) for part in attacks if part.id in gone])
            out.append(
                f"Under '{change.title}' {names} {verb} not apply, so its figures "
                "rest on fewer attacks than those of the unchanged network."
            )
    return out


def _unanswered(
    cases: Sequence[Case], attacks: Sequence[AttackPart], changes: Sequence[Change]
) -> list[str]:
    """Changes against which an attack is made that does not apply to this network."""
    titles = {change.id: change.title for change in changes}
    made = {change.id: AGAINST.get(change.kind) for change in changes}
    names = {part.id: _short(part) for part in attacks}
    return [
        f"Under '{titles[case.change]}' {names[case.attack]}, which is made against it, could not "
        f"be tried: {case.runs[0].reason}"
        for case in cases
        if made.get(case.change) == case.attack and case.runs and not case.attempted
    ]


def _short(part: AttackPart) -> str:
    """What stands before the comma of a title."""
    return part.title.split(",")[0]


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _was(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"


def _worst(best: Best) -> Worst | None:
    """The nearest answer of all."""
    found = [
        (score.rank, attack, image)
        for attack, own in best.scores.items()
        for image, score in own.items()
    ]
    if not found:
        return None
    _, attack, image = max(found, key=lambda one: one[0])
    score = best.scores[attack][image]
    return Worst(
        attack=attack,
        image=image,
        seed=best.seeds[attack][image],
        psnr=score.psnr,
        ssim=score.ssim,
    )
