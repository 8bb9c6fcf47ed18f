"""report.html: an audit for a person to read, in one file that asks for nothing from outside."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gradleak import __version__, page_text, pages
from gradleak.artifacts import atomic
from gradleak.auditing.page_pictures import LARGE, SMALL, Embedded, Pictures, embed
from gradleak.auditing.result import (
    AttackPart,
    Audit,
    Case,
    Change,
    Chapter,
    Effect,
    Run,
    Verdict,
)
from gradleak.provenance import software

# The template takes in what else the page is made of.
TEMPLATE = "audit.html.j2"
# Images that the strip shows; more would make the file large and the table endless.
STRIP = 10
NO_PROOF = "no proof of safety"
# Effects in the order of the table.
ORDER: tuple[Effect, ...] = ("helps", "no difference shown", "inconclusive", "worse", "")
# What a grade says: as a label, and in a sentence that needs no other.
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
class Row:
    """What one attack found under one change."""

    attack: AttackPart
    change: Change
    case: Case

    @property
    def failures(self) -> list[str]:
        """Why runs gave no answer, each reason once; with how often if it is not that of all."""
        runs = self.case.runs
        reasons = Counter(run.reason for run in runs if run.status != "ok")
        return [
            (reason or "no reason given") + ("" if many == len(runs) else f" ({many})")
            for reason, many in reasons.items()
        ]


@dataclass(frozen=True)
class Help:
    """A change that was tried: what attacks found before and after it.

    `rank` is None where it was not shown to help.
    """

    rank: int | None
    change: Change
    attack: str
    before: Change

    @property
    def effect(self) -> str:
        """What it did, in words, with the probability of as much by chance."""
        if self.change.p is None or self.change.effect not in ("helps", "worse"):
            return self.change.effect
        return f"{self.change.effect} (p = {self.change.p:.1g})"


@dataclass(frozen=True)
class Cell:
    """One answer of the strip: its picture and scores, or why there is none."""

    attack: str
    picture: Embedded | None
    run: Run | None
    batch: int
    alt: str

    @property
    def why(self) -> str:
        """Why there is no picture."""
        if self.run is None:
            return "not tried on this image"
        return self.run.reason or "no picture was kept"


@dataclass(frozen=True)
class StripRow:
    """One image under attack and the answers to it."""

    image: int
    original: Embedded
    cells: tuple[Cell, ...]


def write(
    path: str | os.PathLike[str], audit: Audit, pictures: Pictures, command: str | None = None
) -> None:
    """Write the page.

    Parameters
    ----------
    path
        The file to make.
    audit
        What was found.
    pictures
        Images under attack and answers; the first ten images are shown.
    command
        What makes the page again; by default the pipeline's command for the audit's name.

    Raises
    ------
    ArtifactError
        If the file cannot be written.
    """
    text = render(audit, pictures, command)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def render(audit: Audit, pictures: Pictures, command: str | None = None) -> str:
    """HTML of the page; parameters as of `write`."""
    return pages.template(TEMPLATE).render(_context(_Findings(audit, pictures), command))


def best(runs: Iterable[Run]) -> Run | None:
    """The answer nearest to its original: a readable one, by SSIM, by PSNR, the first of equals."""

    def rank(run: Run) -> tuple[bool, float, float]:
        assert run.psnr is not None
        return run.readable, -1.0 if run.ssim is None else run.ssim, run.psnr

    return max((run for run in runs if run.psnr is not None), key=rank, default=None)


class _Findings:
    """An audit, looked up by what the page needs."""

    def __init__(self, audit: Audit, pictures: Pictures) -> None:
        self.audit, self.pictures = audit, pictures
        self.attacks = {attack.id: attack for attack in audit.attacks}
        self.changes = {change.id: change for change in audit.changes}

    @cached_property
    def unchanged(self) -> Change:
        return next(change for change in self.audit.changes if change.kind == "none")

    def title(self, attack: str) -> str:
        return self.attacks[attack].title

    def rows(self, chapter: Chapter, unchanged: bool) -> list[Row]:
        """Cases of a chapter: of the network as it is, or of all changes."""
        return [
            Row(self.attacks[case.attack], self.changes[case.change], case)
            for case in self.audit.cases
            if self.attacks[case.attack].chapter == chapter
            and (case.change == self.unchanged.id) == unchanged
        ]

    def helps(self) -> list[Help]:
        """Changes that were tried, ranked ones first."""
        ranking = self.audit.verdict.ranking
        tried = [
            change.id
            for change in sorted(self.audit.changes, key=lambda change: ORDER.index(change.effect))
            if change.leak is not None and change.kind != "none" and change.id not in ranking
        ]
        return [
            Help(
                place + 1 if place < len(ranking) else None,
                change,
                self.title(change.attack) if change.attack else "",
                self.unchanged,
            )
            for place, change in enumerate(self.changes[name] for name in (*ranking, *tried))
        ]

    def untried(self) -> list[Change]:
        """Changes that were not tried."""
        return [
            change
            for change in self.audit.changes
            if change.leak is None
            and change.kind != "none"
            and change.id not in self.audit.verdict.ranking
        ]

    def pair(self) -> tuple[Embedded, Embedded | None] | None:
        """Original and answer of the worst reconstruction."""
        worst = self.audit.verdict.worst
        if worst is None:
            return None
        answer = self.pictures.answers.get(worst.attack, {}).get(worst.image)
        original = embed(self.pictures.originals[worst.image], LARGE)
        return original, None if answer is None else embed(answer, LARGE)

    def images(self, rows: Sequence[Row]) -> list[int]:
        """Images that the strip of some attacks shows: the first ten, the worst among them."""
        worst = self.audit.verdict.worst
        tried = {
            image
            for row in rows
            for image in (
                *(run.image for run in row.case.runs),
                *self.pictures.answers.get(row.attack.id, {}),
            )
        }
        first = {worst.image} if worst and worst.image in tried else set()
        for image in sorted(tried & set(range(len(self.pictures.originals)))):
            if len(first) < STRIP:
                first.add(image)
        return sorted(first)

    def strip(self, chapter: Chapter) -> list[StripRow]:
        """Images and answers of a chapter's attacks on the network as it is."""
        rows = self.rows(chapter, unchanged=True)
        return [
            StripRow(
                image,
                embed(self.pictures.originals[image], SMALL),
                tuple(self._cell(row, image) for row in rows),
            )
            for image in self.images(rows)
        ]

    def _cell(self, row: Row, image: int) -> Cell:
        batch = row.case.batch
        runs = [run for run in row.case.runs if run.image == image]
        run = best(runs) or next(iter(runs), None)
        answer = self.pictures.answers.get(row.attack.id, {}).get(image)
        return Cell(
            row.attack.title,
            None if answer is None else embed(answer, SMALL),
            run,
            batch,
            answer_alt(row.attack.title, image, run, batch),
        )


def answer_alt(title: str, image: int, run: Run | None, batch: int = 1) -> str:
    """Alternative text of an answer: what it is, and how near it comes."""
    shared = f", one of {batch} that share a gradient" if batch > 1 else ""
    said = f"Answer to picture {image + 1}{shared}, by {title}"
    if run is None or run.psnr is None:
        return f"{said}; it was not scored"
    verdict = "readable" if run.readable else "below the threshold"
    return f"{said}; {scored(run.psnr, run.ssim)}, {verdict}"


def scored(psnr: float, ssim: float | None) -> str:
    """PSNR and SSIM in words; SSIM is left out where there is none."""
    like = "" if ssim is None else f", SSIM {page_text.fixed(ssim, 2)}"
    return f"PSNR {page_text.fixed(psnr, 1)} dB{like}"


def _limits(verdict: Verdict) -> tuple[str, ...]:
    """Limits, with the one that no page may lack."""
    if any(NO_PROOF in limit for limit in verdict.limits):
        return verdict.limits
    return (f"An attack that failed is {NO_PROOF}: a better one may exist.", *verdict.limits)


def _context(found: _Findings, command: str | None) -> dict[str, Any]:
    audit, worst = found.audit, found.audit.verdict.worst
    label, meaning = GRADES[audit.verdict.grade]
    refused = [attack for attack in audit.attacks if attack.reason]
    chapters: tuple[Chapter, Chapter] = ("honest server", "malicious server")
    critical = [i for i, layer in enumerate(audit.structure.layers) if layer.critical]
    return {
        "audit": audit,
        "label": label,
        "meaning": meaning,
        "pair": found.pair(),
        "found": found,
        "channels": found.pictures.originals.shape[1],
        "limits": _limits(audit.verdict),
        "worst_scores": worst and scored(worst.psnr, worst.ssim),
        "unchanged": found.unchanged,
        "helps": found.helps(),
        "untried": found.untried(),
        "chapters": {
            chapter: {
                "attacks": [a for a in audit.attacks if a.chapter == chapter],
                "refused": [attack for attack in refused if attack.chapter == chapter],
                "plain": found.rows(chapter, unchanged=True),
                "changed": found.rows(chapter, unchanged=False),
                "strip": found.strip(chapter),
            }
            for chapter in chapters
        },
        "unreadable": [layer for layer in audit.structure.layers if not layer.readable],
        "critical": critical[0] if critical else None,
        "versions": {"gradleak": __version__, **software()},
        "command": command or f"snakemake results/audit/{audit.name}/report.html",
    }
