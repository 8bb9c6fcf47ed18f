"""results/record: the part of a run that is kept in `docs/results`, by paper.

Tables and claims as they came out, origin and cost of each of their files, and one row a paper for
the README. No pictures: those of restricted data sets must not be redistributed.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from gradleak.claims.outcome import VERDICTS
from gradleak.errors import ArtifactError
from gradleak.reporting.provenance_record import behind
from gradleak.runtime.artifacts import read_csv, write_csv, write_json

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


def artifacts(tops: Iterable[str], files: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """One row for each recorded file behind the figures and tables `tops`: code, checksum and cost.

    `files` are the `artifacts` of results/provenance.json. Files of one job share its time.
    """
    paths = sorted(behind(tops, files))
    rows = [{"artifact": path, **files[path]} for path in paths if files[path]["recorded"]]
    return pd.DataFrame(rows, columns=[*ARTIFACT, *TOOK])


def summary(
    results: Iterable[str], claims: pd.DataFrame, made: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """One row a paper: results, claims by verdict, jobs and their CPU time in minutes."""
    tops, rows = list(results), []
    for paper, own in claims.groupby("paper", sort=False):
        kinds = Counter(Path(path).suffix for path in tops if paper_of(path) == paper)
        # Outputs of one job have identical costs.
        ran = made[str(paper)].drop_duplicates(["rule", *TOOK])
        row = {"paper": paper, "figures": kinds[".pdf"], "tables": kinds[".csv"]}
        row |= {"claims": len(own), **{key: int((own.verdict == key).sum()) for key in VERDICTS}}
        took = round(ran.cpu_seconds.sum() / 60, 1)
        rows.append({**row, "jobs": len(ran), "cpu_minutes": took})
    return pd.DataFrame(rows)


def write(folder: str, provenance: str, claims: str, tables: Iterable[str]) -> None:
    """Write `run.json`, `summary.csv`, and claims, artifacts and tables by paper to `folder`.

    Raises `ArtifactError` if a file was made by hand or changed since, so that nobody could make it
    again.
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
    rows = read_csv(claims, dtype=str, keep_default_na=False)
    results = [own["path"] for own in told["results"]]
    made = {}
    for paper in rows.paper.unique():
        place = Path(folder, paper)
        place.mkdir(parents=True, exist_ok=True)
        made[paper] = artifacts((path for path in results if paper_of(path) == paper), files)
        write_csv(place / "claims.csv", rows[rows.paper == paper])
        write_csv(place / "artifacts.csv", made[paper])
    for table in tables:
        shutil.copyfile(table, Path(folder, paper_of(table), Path(table).name))
    write_csv(Path(folder, "summary.csv"), summary(results, rows, made))
    write_json(Path(folder, "run.json"), {key: told[key] for key in RUN})
