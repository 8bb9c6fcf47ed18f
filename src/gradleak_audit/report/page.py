"""report.html: an audit as one self-contained page."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.reporting import pages
from gradleak.runtime.artifacts import atomic
from gradleak.runtime.provenance import software
from gradleak.runtime.version import __version__
from gradleak_audit.report.page_pictures import LARGE, SMALL, Embedded, Pictures, embed
from gradleak_audit.result import NONE, Audit, Case, Change, Chapter, Effect, Run

# The template includes the page's other parts.
TEMPLATE = "audit.html.j2"
# Images in the strip; more would make the file and the table too large.
STRIP = 10
NO_PROOF = "no proof of safety"
CHAPTERS: tuple[Chapter, Chapter] = ("honest server", "malicious server")
# Order of effects in the table.
ORDER: tuple[Effect, ...] = ("helps", "no difference shown", "inconclusive", "worse", "")
# Wording of a grade: as a label, and as a sentence on its own.
GRADES = {
    "leaks": ("It leaks", "At least one answer to the unchanged network was readable."),
    "partly": (
        "It leaks in part",
        "No answer was readable, but answers were nearer to their own picture than to others more "
        "often than chance gives.",
    ),
    "not shown": ("No leak was shown", f"That is {NO_PROOF}."),
}


@dataclass(frozen=True)
class Cell:
    """One reconstruction of the strip: its image and scores."""

    attack: str
    picture: Embedded | None
    run: Run | None
    batch: int


def write(
    path: str | os.PathLike[str], audit: Audit, pictures: Pictures, command: str | None = None
) -> None:
    """Write the page; `command` regenerates it, by default the pipeline's command."""
    text = render(audit, pictures, command)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def render(audit: Audit, pictures: Pictures, command: str | None = None) -> str:
    """Return the HTML of the page; parameters as in `write`."""
    label, meaning = GRADES[audit.verdict.grade]
    changes, layers = {change.id: change for change in audit.changes}, audit.structure.layers
    limits = audit.verdict.limits
    if not any(NO_PROOF in limit for limit in limits):
        limits = (f"An attack that failed is {NO_PROOF}: a better one may exist.", *limits)
    return pages.template(TEMPLATE).render(
        audit=audit,
        label=label,
        meaning=meaning,
        pair=_pair(audit, pictures),
        attacks={attack.id: attack for attack in audit.attacks},
        changes=changes,
        failures=failures,
        channels=pictures.originals.shape[1],
        limits=limits,
        unchanged=changes[NONE],
        helps=_helps(audit.verdict.ranking, changes),
        untried=[change for change in audit.changes if change.leak is None and change.id != NONE],
        chapters={name: _chapter(name, audit, pictures) for name in CHAPTERS},
        unreadable=[layer for layer in layers if not layer.readable],
        critical=next((i for i, layer in enumerate(layers) if layer.critical), None),
        versions={"gradleak": __version__, **software()},
        command=command or f"snakemake results/audit/{audit.name}/report.html",
    )


def best(runs: Iterable[Run]) -> Run | None:
    """Return the closest reconstruction: readable first, then by SSIM, PSNR and order."""
    scored = [run for run in runs if run.psnr is not None]
    return max(scored, key=lambda run: run.rank, default=None)


def failures(runs: Sequence[Run]) -> list[str]:
    """Distinct reasons of failed runs, each with its count unless all runs share it."""
    reasons = Counter(run.reason or "no reason given" for run in runs if run.status != "ok")
    return [why + ("" if many == len(runs) else f" ({many})") for why, many in reasons.items()]


def _helps(ranking: Sequence[str], changes: dict[str, Change]) -> list[Change]:
    """Changes that were tried, ranked ones first."""
    others = sorted(changes.values(), key=lambda change: ORDER.index(change.effect))
    tried = [x for x in others if x.leak is not None and x.id not in (NONE, *ranking)]
    return [*(changes[name] for name in ranking), *tried]


def _pair(audit: Audit, pictures: Pictures) -> tuple[Embedded, Embedded | None] | None:
    """Original and reconstruction of the worst leak."""
    if (worst := audit.verdict.worst) is None:
        return None
    answer = _answer(worst.attack, worst.image, pictures, LARGE)
    return embed(pictures.originals[worst.image], LARGE), answer


def _chapter(name: Chapter, audit: Audit, pictures: Pictures) -> dict[str, Any]:
    """Attacks of a chapter, cases of all changes, and the strip."""
    attacks = {attack.id: attack for attack in audit.attacks if attack.chapter == name}
    cases = [case for case in audit.cases if case.attack in attacks]
    plain = [case for case in cases if case.change == NONE]
    strip = []
    for image in _shown(plain, audit, pictures):
        cells = [_cell(case, attacks[case.attack].title, image, pictures) for case in plain]
        strip.append((image, embed(pictures.originals[image], SMALL), cells))
    return {
        "attacks": list(attacks.values()),
        "refused": [attack for attack in attacks.values() if attack.reason],
        "plain": plain,
        "changed": [case for case in cases if case.change != NONE],
        "strip": strip,
    }


def _shown(cases: Sequence[Case], audit: Audit, pictures: Pictures) -> list[int]:
    """Images in the strip of some cases: the first ten, including the worst leak."""
    worst = audit.verdict.worst
    tried = {run.image for case in cases for run in case.runs}
    tried |= {image for case in cases for image in pictures.answers.get(case.attack, {})}
    shown = sorted(tried & set(range(len(pictures.originals))))
    if worst and worst.image in shown[STRIP:]:
        shown[STRIP - 1] = worst.image
    return shown[:STRIP]


def _cell(case: Case, title: str, image: int, pictures: Pictures) -> Cell:
    runs = [run for run in case.runs if run.image == image]
    shown = _answer(case.attack, image, pictures, SMALL)
    return Cell(title, shown, best(runs) or next(iter(runs), None), case.batch)


def _answer(attack: str, image: int, pictures: Pictures, side: int) -> Embedded | None:
    answer = pictures.answers.get(attack, {}).get(image)
    return None if answer is None else embed(answer, side)
