"""The recorded claims as one page: ``python -m gradleak.reporting.record_page docs/results``.

It is made from the claims files of a record, without a run, and shows no pictures.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from gradleak.claims import KINDS, recorded, tally
from gradleak.claims.forms.base import EXTREMES
from gradleak.claims.outcome import VERDICTS
from gradleak.errors import ArtifactError, GradleakError
from gradleak.pipeline.results.schema import NAME
from gradleak.reporting import content, page, pages
from gradleak.reporting.page_text import DASH
from gradleak.runtime.artifacts import FilePath, atomic

FILE = "claims.html"
COMMAND = "python -m gradleak.reporting.record_page"


def render(folder: FilePath, papers: FilePath) -> str:
    """Return the page of the record in `folder`, with claims from `papers`.

    Raises `ArtifactError` or `ConfigError` if a file is missing or damaged.
    """
    names = sorted(path.parent.name for path in Path(folder).glob(f"*/{recorded.EVIDENCE}"))
    if not names:
        raise ArtifactError(f"{folder} holds no paper's {recorded.EVIDENCE}; name a record.")
    sources = _sources(Path(folder), Path(papers), names)
    frame = content.read_claims(sources.claimed)
    found = page.papers(sources)
    # By paper, the whole record first; its parts by experiment.
    runs = {name: _runs(Path(folder, name)) for name in names}
    every = [run for own in runs.values() for run in own.values()]
    made = sorted(str(run["made"])[:10] for run in every if "made" in run)
    # Of several runs, each version once.
    versions: dict[str, list[str]] = {}
    for run in every:
        for name, version in run["versions"].items():
            versions[name] = list(dict.fromkeys([*versions.get(name, []), str(version)]))
    return pages.template("record.html.j2").render(
        papers=found,
        verdicts=VERDICTS,
        overviews={whose: page.overview(found, frame, whose) for whose in KINDS},
        runs=runs,
        scale_of={str(name): tally.scales(own) for name, own in frame.groupby("paper")},
        dates=list(dict.fromkeys([*made[:1], *made[-1:]])),
        versions={name: ", ".join(each) for name, each in versions.items()},
        files=tuple(recorded.FILES.values()),
        images=frame["images"].iloc[0],
        scales=_scales(frame, {one["id"]: one["caption"].title for one in found}),
        # Short to write: most claims lack a number.
        short=lambda value: DASH if value is None else page.short(value),
        by_verdict=content.counted,
        several=page.SEVERAL,
        extremes=EXTREMES,
        command=COMMAND,
    )


def _scales(frame: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Scales of the recorded runs: one, or which papers have which."""
    of = {str(name): tally.scales(own) for name, own in frame.groupby("paper")}
    scales = dict.fromkeys(of[paper] for paper in titles)
    if len(scales) == 1:
        return next(iter(scales))
    parts = []
    for scale in scales:
        names = [title for paper, title in titles.items() if of[paper] == scale]
        parts.append(f"{scale} ({', '.join(names)})")
    return "; ".join(parts)


def _runs(place: Path) -> dict[str, dict[str, Any]]:
    """Run of a paper's record and those of its parts, by their folders in it, as told there."""
    found = {
        part.relative_to(place).as_posix(): recorded.run(part) for part in recorded.parts(place)
    }
    return {"": recorded.run(place), **dict(sorted(found.items()))}


def _sources(folder: Path, papers: Path, names: list[str]) -> page.Sources:
    def beside(name: str) -> list[Path]:
        paths = [papers / paper / name for paper in names]
        return [path for path in paths if path.exists()]

    claimed = [folder / paper / name for paper in names for name in recorded.FILES.values()]
    claims = [papers / paper / "claims.yaml" for paper in names]
    return page.Sources([], [], claimed, claims, beside("explanations.yaml"), beside(NAME))


def write(folder: FilePath, papers: FilePath) -> None:
    """Write ``claims.html`` to a record; raises as `render`."""
    text = render(folder, papers)
    with atomic(Path(folder, FILE)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 2 if the record cannot be read."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/results"))
    parser.add_argument("--papers", type=Path, default=Path("papers"), help="their claims")
    given = parser.parse_args(arguments)
    try:
        write(given.folder, given.papers)
    except GradleakError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
