"""report.html: all figures, tables and claims on one self-contained page."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from gradleak.claims import KINDS, load_all, tally
from gradleak.claims.forms.base import EXTREMES
from gradleak.claims.outcome import DIFFERS, EXCEEDS, VERDICTS
from gradleak.reporting import content, page_text, pages, pictures
from gradleak.reporting.captions import Captions
from gradleak.runtime.artifacts import FilePath, atomic
from gradleak.runtime.provenance import software
from gradleak.runtime.version import __version__

# Number of a figure or table in the paper, from a result's name.
NUMBERED = re.compile(r"(fig|table)(\d+)")
# Columns of an overview: counts of claims, by verdict, and of tests.
KEYS = ("claims", *VERDICTS, "tests", "hold", "hold_holm", "fail", "fail_holm")
WHOLE = 2.0**53  # above this value floats cannot represent all integers, so it is not a count
SEVERAL = {EXCEEDS: "exceed", DIFFERS: "differ"}  # plural forms of verdicts, if different
IMAGES = {
    "embedded": "photos and digits that ship with scikit-image and scikit-learn",
    "real": "the data sets that the papers name",
}


@dataclass(frozen=True)
class Sources:
    """Inputs of the report; figures by their PNGs, with the PDFs beside them."""

    figures: Sequence[Path]
    tables: Sequence[Path]
    claimed: Sequence[Path]  # the papers' claims, ours, and parts of sentences
    claims: Sequence[Path]
    explanations: Sequence[Path]
    captions: Sequence[Path]
    threats: Mapping[str, str] = field(default_factory=dict)  # by name of a figure or table


def write(path: FilePath, sources: Sources) -> None:
    """Write the page, with links relative to its folder.

    Raises `ArtifactError` or `ConfigError` if an input cannot be read.
    """
    target = Path(path)
    # The template includes the page's other parts.
    text = pages.template("report.html.j2").render(_context(target.parent, sources))
    with atomic(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def papers(sources: Sources) -> list[content.Part]:
    """Return the content by paper, with which names of figures and tables begin."""
    frame = content.read_claims(sources.claimed)
    captions = Captions(list(sources.captions))
    shown = pictures.embed(sources.figures)
    order = list(dict.fromkeys(_paper(path) for path in (*sources.figures, *sources.tables)))
    found = []
    for claims, why in load_all(sources.claims, sources.explanations):
        judged = content.judged(frame, claims, why)
        mine = {path: shown[path] for path in _of(sources.figures, claims.paper)}
        tables = _of(sources.tables, claims.paper)
        if judged or mine or tables:
            found.append(content.paper(claims, judged, mine, tables, captions))
    places = {name: place for place, name in enumerate(order)}
    return sorted(found, key=lambda part: places.get(part["id"], len(order)))


def _paper(path: Path) -> str:
    return path.stem.partition("_")[0]


def _of(paths: Sequence[Path], paper: str) -> list[Path]:
    """Results of a paper: those numbered in the paper in its order, then ours."""

    def place(path: Path) -> tuple[bool, str, int, str]:
        numbered = NUMBERED.fullmatch(path.stem.partition("_")[2])
        return (False, numbered[1], int(numbered[2]), "") if numbered else (True, "", 0, path.stem)

    return sorted((path for path in paths if _paper(path) == paper), key=place)


def _context(folder: Path, sources: Sources) -> dict[str, Any]:
    found = papers(sources)
    frame = content.read_claims(sources.claimed)
    images, scale = str(frame["images"].iloc[0]), str(frame["scale"].iloc[0])
    return {
        "papers": found,
        "threats": dict(sources.threats),
        "verdicts": VERDICTS,
        "overviews": {whose: overview(found, frame, whose) for whose in KINDS},
        "claimed": [_link(folder, path) for path in sources.claimed],
        "images": images,
        "pictured": IMAGES.get(images, images),
        "scale": scale,
        "link": lambda path: _link(folder, path),
        "short": short,
        "by_verdict": content.counted,
        "several": SEVERAL,
        "extremes": EXTREMES,
        "versions": {"gradleak": __version__, **software()},
        "command": f"snakemake --config images={images} scale={scale} -- results/report.html",
    }


def overview(found: list[content.Part], frame: pd.DataFrame, whose: str) -> content.Part:
    """Counts of the papers' own claims, of ours, or of parts, by paper and of all together."""
    mine = tally.of_kind(frame, whose)
    parts = [(part["id"], mine[mine["paper"] == part["id"]]) for part in found]
    rows = {
        name: {"claims": len(own), **tally.of_verdicts(own), **tally.of_tests(own)}
        for name, own in parts
    }
    return {"rows": rows, "all": {key: sum(row[key] for row in rows.values()) for key in KEYS}}


def _link(folder: Path, path: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def short(value: float | None, why: str = "no number") -> str:
    """Format a number with four significant digits; whole numbers and halves in full.

    As in the papers, thousands are apart in numbers of five digits or more.
    """
    text = page_text.number(value, why, digits=4)
    if value is not None and abs(value) < WHOLE and float(2.0 * value).is_integer():
        text = page_text.fixed(value, 0 if float(value).is_integer() else 1)
    return text.replace(",", "") if value is not None and abs(value) < 10_000 else text
