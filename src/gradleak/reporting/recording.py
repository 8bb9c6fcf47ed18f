"""results/record: the part of a run that is kept in `docs/results`, by paper.

Tables and claims as they came out, the scores and layers that verdicts rest on, origin and cost of
each file, and two rows a paper for the README. No pictures: those of restricted data sets must not
be redistributed.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gradleak.claims import recorded, tally
from gradleak.errors import ArtifactError
from gradleak.reporting.provenance_record import behind
from gradleak.runtime.artifacts import write_csv, write_json
from gradleak.runtime.zipped import write_zip

# Keys of results/provenance.json about the whole run.
RUN = (
    "images", "scale", "device", "machine", "commits", "code", "workflow", "files", "amounts",
    "seeds", "versions", "datasets",
)  # fmt: skip
ARTIFACT = ["artifact", "rule", "code", "commit", "sha256"]
TOOK = ["threads", "seconds", "cpu_seconds", "peak_mib", "gpu"]


def paper_of(path: str) -> str:
    """Paper of a figure or table: `figures/copa_fig1.pdf` is one of `copa`."""
    return Path(path).stem.partition("_")[0]


def experiment_of(path: str) -> str:
    """Paper of a score or layer file, `results/scores/real-laptop/copa_pair/…`."""
    return Path(path).parts[3].partition("_")[0]


def artifacts(tops: Iterable[str], files: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """One row for each recorded file behind the figures and tables `tops`: code, checksum and cost.

    `files` are the `artifacts` of results/provenance.json. Files of one job share its time.
    """
    paths = sorted(behind(tops, files))
    rows = [{"artifact": path, **files[path]} for path in paths if files[path]["recorded"]]
    return pd.DataFrame(rows, columns=[*ARTIFACT, *TOOK])


def _sizes(paper: str, results: Iterable[str], made: pd.DataFrame) -> dict[str, float]:
    """Figures, tables, jobs and their CPU time in minutes; outputs of one job have one cost."""
    kinds = Counter(Path(path).suffix for path in results if paper_of(path) == paper)
    ran = made.drop_duplicates(["rule", *TOOK])
    took = round(ran.cpu_seconds.sum() / 60, 1)
    found = {"figures": kinds[".pdf"], "tables": kinds[".csv"], "jobs": len(ran)}
    return {**found, "cpu_minutes": took}


def write(
    folder: str, provenance: str, claims: Sequence[str], tables: Iterable[str],
    evidence: Iterable[str] = (),
) -> None:  # fmt: skip
    """Write `run.json`, `summary.csv`, and claims, artifacts and tables by paper to `folder`.

    `claims` are the papers' and ours, in files of these names. `evidence` are scores, security and
    rank files; each paper's go into its `evidence.zip` (`gradleak.claims.recorded`). Raises
    `ArtifactError` if a file was made by hand or changed since, so that nobody could make it again.
    """
    told = json.loads(Path(provenance).read_text(encoding="utf-8"))
    files = told["artifacts"]
    changed = [path for path, own in files.items() if own.get("altered")]
    missing = {path for own in told["results"] for path in own["unrecorded"]}
    faults = {"was changed after it was made": changed, "has no sidecar": missing}
    for what, found in faults.items():
        if paths := sorted(found):
            raise ArtifactError(
                f"{paths[0]} {what} ({len(paths)} such files); delete it and ask Snakemake for it "
                "again before you record this run."
            )
    results = [own["path"] for own in told["results"]]
    judged = [tally.read(path) for path in claims]
    sizes, kept = {}, list(evidence)
    for paper in pd.concat(judged)["paper"].unique():
        place = Path(folder, paper)
        place.mkdir(parents=True, exist_ok=True)
        made = artifacts((path for path in results if paper_of(path) == paper), files)
        sizes[paper] = _sizes(paper, results, made)
        for path, rows in zip(claims, judged, strict=True):
            write_csv(place / Path(path).name, rows[rows["paper"] == paper])
        write_csv(place / "artifacts.csv", made)
        own = {path: Path(path).read_bytes() for path in kept if experiment_of(path) == paper}
        write_zip(place / recorded.EVIDENCE, own)
    for table in tables:
        shutil.copyfile(table, Path(folder, paper_of(table), Path(table).name))
    write_csv(Path(folder, "summary.csv"), tally.summary(pd.concat(judged), sizes))
    write_json(Path(folder, "run.json"), {key: told[key] for key in RUN})
