"""results/record: the part of a run that is kept in `docs/results`, a folder for each paper.

Tables, the scores and layers that verdicts rest on, the verdicts, settings, and origin and cost of
each file. No pictures: those of restricted data sets must not be redistributed. Of an experiment
or a training alone, as a part of a record, there are no verdicts.
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from gradleak.claims import recorded
from gradleak.errors import ArtifactError
from gradleak.reporting.provenance_record import behind
from gradleak.runtime.artifacts import write_csv, write_json
from gradleak.runtime.zipped import write_zip

# Keys of results/provenance.json about the whole run.
RUN = (
    "made", "images", "scale", "device", "machine", "commits", "code", "workflow", "files",
    "amounts", "seeds", "versions", "datasets",
)  # fmt: skip
ARTIFACT = ["artifact", "rule", "code", "commit", "sha256"]


@dataclass(frozen=True)
class Kept:
    """Files of a paper that a record keeps: its tables, and scores, security and ranks."""

    claims: str  # its claims.yaml, beside which explanations may be
    tables: Iterable[str]
    evidence: Iterable[str]


def artifacts(tops: Iterable[str], files: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """One row for each recorded file behind the figures and tables `tops`: code, checksum and cost.

    `files` are the `artifacts` of results/provenance.json. Files of one job share its time.
    """
    paths = sorted(behind(tops, files))
    rows = [{"artifact": path, **files[path]} for path in paths if files[path]["recorded"]]
    return pd.DataFrame(rows, columns=[*ARTIFACT, *recorded.TOOK])


def write(folder: str, told: Mapping[str, Any], kept: Kept) -> None:
    """Write `run.json`, tables, evidence, artifacts and claims of a paper to `folder`.

    `told` is what `provenance_record.make` says of the paper's results. Raises `ArtifactError` if a
    file was made by hand or changed since, so that nobody could make it again.
    """
    _check(told)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    _describe(place, told, kept.evidence)
    for table in kept.tables:
        shutil.copyfile(table, place / Path(table).name)
    judged = recorded.judge(place, kept.claims)
    recorded.write(place, judged, recorded.tables(place, kept.claims))


def write_part(
    folder: str,
    told: Mapping[str, Any],
    evidence: Iterable[str],
    tables: Mapping[str, pd.DataFrame] | None = None,
) -> None:
    """Write `run.json`, evidence and artifacts of an experiment or a training; see `write`.

    `evidence` is the experiment's scores, of which the means are written too, or the files of the
    training that its `tables`, by name, were made from.
    """
    _check(told)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    _describe(place, told, evidence)
    for name, table in (tables or {}).items():
        write_csv(place / f"{name}.csv", table)
    if tables is None:
        write_csv(place / recorded.MEANS, recorded.means_of(place))


def _describe(place: Path, told: Mapping[str, Any], evidence: Iterable[str]) -> None:
    """Write what a record says of its run, and the files that verdicts rest on."""
    results = [own["path"] for own in told["results"]]
    write_csv(place / recorded.ARTIFACTS, artifacts(results, told["artifacts"]))
    # A record is for others, whom the folders of this machine tell nothing.
    data = [{**one, "path": Path(one["path"]).name} for one in told["datasets"]]
    write_json(place / recorded.RUN, {**{key: told[key] for key in RUN}, "datasets": data})
    write_zip(place / recorded.EVIDENCE, {path: Path(path).read_bytes() for path in evidence})


def _check(told: Mapping[str, Any]) -> None:
    """Refuse files that no rule made as they are."""
    changed = [path for path, own in told["artifacts"].items() if own.get("altered")]
    missing = {path for own in told["results"] for path in own["unrecorded"]}
    faults = {"was changed after it was made": changed, "has no sidecar": missing}
    for what, found in faults.items():
        if paths := sorted(found):
            raise ArtifactError(
                f"{paths[0]} {what} ({len(paths)} such files); delete it and ask Snakemake for it "
                "again before you record this run."
            )
