"""report.html: an audit as one self-contained page."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradleak.reporting import pages
from gradleak.reporting.pictures import Thumbnail, thumbnail
from gradleak.runtime.artifacts import atomic
from gradleak.runtime.provenance import MORE, software
from gradleak.runtime.version import __version__
from gradleak_audit.attack.trials import OF_COLOUR, OF_MEAN, SMOOTHED, THRESHOLDS
from gradleak_audit.mitigate.mitigation_cost import TRAININGS
from gradleak_audit.mitigate.mitigation_effect import PAIRS
from gradleak_audit.report.files import Pictures
from gradleak_audit.result import NONE, QUICK, AttackPart, Audit, Case, Change, Chapter, Effect, Run

# The template includes the page's other parts.
TEMPLATE = "audit.html.j2"
# Images in the strip; more would make the file and the table too large.
STRIP = 10
CHAPTERS: tuple[Chapter, Chapter] = ("honest server", "malicious server")
# Order of effects in the table.
ORDER: tuple[Effect, ...] = (
    *("helps", "too few pairs", "no difference shown", "inconclusive", "worse", ""),
)
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
# Sides in CSS pixels: of the worst leak, and of images in a strip.
LARGE, SMALL = 224, 96


def write(
    path: str | os.PathLike[str], audit: Audit, pictures: Pictures, command: str | None = None
) -> None:
    """Write the page; `command` regenerates it, by default the pipeline's command."""
    text = render(audit, pictures, command)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def render(audit: Audit, pictures: Pictures, command: str | None = None) -> str:
    """Return the HTML of the page; parameters as in `write`."""
    changes, ranked = {change.id: change for change in audit.changes}, audit.verdict.ranking
    others = [x for x in audit.changes if x.leak is not None and x.id not in (NONE, *ranked)]
    helps = [*map(changes.__getitem__, ranked)]
    helps += sorted(others, key=_order)
    costs = ((change, change.price.note if change.price else "") for change in helps)
    notes = ((change.title, f"{change.note} {cost}".strip()) for change, cost in costs)
    untried = ((x.title, x.reason) for x in audit.changes if x.leak is None and x.id != NONE)
    pair = None
    if worst := audit.verdict.worst:
        answer = _answer(worst.attack, worst.image, pictures, LARGE)
        pair = thumbnail(pictures.originals[worst.image], LARGE), answer
    return pages.template(TEMPLATE).render(
        audit=audit,
        pair=pair,
        attacks={attack.id: attack for attack in audit.attacks},
        changes=changes,
        channels=pictures.originals.shape[1],
        unchanged=changes[NONE],
        helps=helps,
        training=TRAININGS[audit.setting.scale],
        left=_left(helps, audit, pictures),
        notes=grouped((title, note) for title, note in notes if note),
        untried=grouped(untried),
        failures=_failures,
        thresholds=THRESHOLDS,
        of_colour=OF_COLOUR,
        of_mean=OF_MEAN,
        smoothing=SMOOTHED,
        examples=json.loads((pages.FOLDER / pages.GRADES).read_text(encoding="utf-8")),
        tried={case.attack for case in audit.cases if case.attempted},
        pairs=PAIRS,
        quick=QUICK,
        chapters={name: _chapter(name, audit, pictures) for name in CHAPTERS},
        versions={"gradleak": __version__, **_software(audit)},
        command=command or f"snakemake results/audit/{audit.name}/report.html",
    )


def _order(change: Change) -> tuple[float, float]:
    """Sort key of changes that were not shown to help: by effect, then by what is left."""
    return ORDER.index(change.effect), 1.0 if change.ssim is None else change.ssim


def best(runs: Iterable[Run]) -> Run | None:
    """Return the closest reconstruction: by grade, then by SSIM, PSNR and order."""
    scored = [run for run in runs if run.psnr is not None]
    return max(scored, key=lambda run: run.rank, default=None)


def grouped(told: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Return each reason once, with the titles that it is told of, from pairs of the two."""
    out: dict[str, list[str]] = {}
    for title, reason in told:
        out.setdefault(reason, []).append(title[:1].upper() + title[1:])
    return list(out.items())


def _software(audit: Audit) -> dict[str, str]:
    """Versions of what every audit needs, and of torchvision if the network is from there."""
    used = {"torchvision"} if audit.network.source.startswith("torchvision") else set()
    unused = set(MORE) - used
    return {name: version for name, version in software().items() if name not in unused}


def _failures(
    cases: Sequence[Case], attacks: Mapping[str, AttackPart], changes: Mapping[str, Change]
) -> list[tuple[str, list[str]]]:
    """Return why runs have no reconstruction, and whose they are, with their number unless all are.

    Reasons that differ in numbers alone are told once, with those of the first run.
    """
    told: list[tuple[str, str]] = []
    for case in cases:
        under = "" if case.change == NONE else f", {changes[case.change].title}"
        alike: dict[str, list[str]] = {}
        for run in case.runs:
            if run.status != "ok":
                alike.setdefault(NUMBER.sub("#", run.reason), []).append(run.reason)
        for reasons in alike.values():
            share = (
                "" if len(reasons) == len(case.runs) else f" ({len(reasons)} of {len(case.runs)})"
            )
            more = " (numbers of the first run)" if len(set(reasons)) > 1 else ""
            told.append((f"{attacks[case.attack].title}{under}{share}", reasons[0] + more))
    return grouped(told)


def _chapter(name: Chapter, audit: Audit, pictures: Pictures) -> dict[str, Any]:
    attacks = {attack.id: attack for attack in audit.attacks if attack.chapter == name}
    cases = [case for case in audit.cases if case.attack in attacks]
    plain = [case for case in cases if case.change == NONE]
    strip = []
    for image in _shown(plain, audit, pictures):
        cells = [_cell(case, attacks[case.attack].title, image, pictures) for case in plain]
        strip.append((image, thumbnail(pictures.originals[image], SMALL), cells))
    return {
        "attacks": list(attacks.values()),
        "refused": grouped((x.title, x.reason) for x in attacks.values() if x.reason),
        "plain": plain,
        "changed": [case for case in cases if case.change != NONE],
        "strip": strip,
    }


def _left(helps: Sequence[Change], audit: Audit, pictures: Pictures) -> list[dict[str, Any]]:
    """Nearest reconstructions under changes, the unchanged network's first; none if it is alone."""
    cases = {(case.change, case.attack): case for case in audit.cases}
    unchanged = [change for change in audit.changes if change.id == NONE]
    left = []
    for change in (*unchanged, *helps):
        attack, image, answer = pictures.changes.get(change.id, ("", 0, None))
        case = cases.get((change.id, attack))
        if case is None or answer is None:
            continue
        run = best(run for run in case.runs if run.image == image)
        # Of a batch it is not known here which image that is.
        original = thumbnail(pictures.originals[image], SMALL) if case.batch == 1 else None
        own = {"change": change, "attack": attack, "image": image, "batch": case.batch, "run": run}
        left.append(own | {"original": original, "answer": thumbnail(answer, SMALL)})
    return left if len(left) > 1 else []


def _shown(cases: Sequence[Case], audit: Audit, pictures: Pictures) -> list[int]:
    worst = audit.verdict.worst
    tried = {run.image for case in cases for run in case.runs}
    tried |= {image for case in cases for image in pictures.answers.get(case.attack, {})}
    shown = sorted(tried & set(range(len(pictures.originals))))
    if worst and worst.image in shown[STRIP:]:
        shown[STRIP - 1] = worst.image
    return shown[:STRIP]


def _cell(case: Case, title: str, image: int, pictures: Pictures) -> dict[str, Any]:
    runs = [run for run in case.runs if run.image == image]
    shown = _answer(case.attack, image, pictures, SMALL)
    run = best(runs) or next(iter(runs), None)
    return {"attack": title, "picture": shown, "run": run, "batch": case.batch}


def _answer(attack: str, image: int, pictures: Pictures, side: int) -> Thumbnail | None:
    answer = pictures.answers.get(attack, {}).get(image)
    return None if answer is None else thumbnail(answer, side)
