"""Costs of jobs: by kind in `workflow/resources.csv`, and one by one in `workflow/jobs.csv`.

Both are written by ``python -m gradleak.pipeline.resources``, from the sidecars of a run or from a
record's lists of files.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from gradleak.config.schema import Config
from gradleak.errors import ArtifactError
from gradleak.pipeline.work import key_of, work
from gradleak.runtime.artifacts import write_rows
from gradleak.runtime.job_records import NAMES
from gradleak.runtime.provenance import TREE
from gradleak.settings.fields import SCALES

TABLE, JOBS = TREE / "workflow/resources.csv", TREE / "workflow/jobs.csv"
# Scripts of `workflow/jobs.csv`, whose jobs may be long. Those of a smoke run are too short to tell
# of others.
SINGLE, UNTOLD = ("attack", "rank_analysis", "security", "train"), "smoke"


class Measured(NamedTuple):
    """Cost of jobs of one kind."""

    script: str  # script of `workflow/scripts/` that they run
    # method of an attack and size of its network, where a script has jobs of several kinds
    key: str
    scale: str  # scale at which they ran
    jobs: int  # number of jobs measured
    mib: float  # highest peak of resident memory, MiB
    # most CPU time, imports included; unlike wall time independent of other load on the machine
    cpu_seconds: float
    # Mean CPU time and work of all jobs, which tell how long many of them take.
    mean_seconds: float
    mean_work: float


class Taken(NamedTuple):
    """Cost of one job."""

    script: str
    of: str  # values of its wildcards, in the order of `job_records.NAMES`
    scale: str
    cpu_seconds: float  # imports included
    work: int  # by the settings of then


@cache
def read(path: Path = TABLE) -> tuple[Measured, ...]:
    """Read a table of kinds; `ArtifactError` for missing columns or an unknown scale."""

    def parse(script: str, key: str, scale: str, jobs: str, *costs: str) -> Measured:
        return Measured(script, key, scale, int(jobs), *map(float, costs))

    return tuple(_rows(path, Measured._fields, parse))


@cache
def read_jobs(path: Path = JOBS) -> tuple[Taken, ...]:
    """Read a table of single jobs; raises as `read`."""

    def parse(script: str, of: str, scale: str, cpu_seconds: str, work: str) -> Taken:
        return Taken(script, of, scale, float(cpu_seconds), int(work))

    return tuple(_rows(path, Taken._fields, parse))


Row = TypeVar("Row", bound=tuple[Any, ...])


def _rows(path: Path, fields: tuple[str, ...], parse: Callable[..., Row]) -> Iterator[Row]:
    """Rows of a table: three names, of which the third is a scale, and numbers above 0."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for line, row in enumerate(rows, start=2):
        try:
            found = parse(*(row[name] for name in fields))
            if tuple(row) != fields or found[2] not in SCALES or min(found[3:]) <= 0:
                raise ValueError(row)
        except (KeyError, TypeError, ValueError):
            raise ArtifactError(
                f"{path}, line {line}: expected {', '.join(fields)} with numbers above 0; write "
                "the table with `python -m gradleak.pipeline.resources`."
            ) from None
        yield found


def name_of(script: str, wildcards: Mapping[str, str]) -> str:
    """Name of a job in `workflow/jobs.csv`; empty for scripts that it leaves out."""
    return "/".join(wildcards[name] for name in NAMES[script]) if script in SINGLE else ""


def _counted(
    config: Config, jobs: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], str, int]]:
    """Jobs that ran on a CPU and whose ids config.yaml has, with their kind and work."""
    for job in jobs:
        at = config.at(job["scale"], job.get("images"))
        with suppress(KeyError):  # id removed from config.yaml
            kind = key_of(at, job["wildcards"])
            amount = work(at, job["script"], job["wildcards"])[0]
            if not job.get("gpu"):
                yield job, kind, amount


def measured(config: Config, jobs: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """Maximum cost of each kind of job that ran on a CPU, from sidecars or what a record lists."""
    taken: dict[tuple[str, str, str], list[tuple[float, float, float]]] = {}
    for job, key, amount in _counted(config, jobs):
        took = job["peak_mib"], job["cpu_seconds"], float(amount)
        taken.setdefault((job["script"], key, job["scale"]), []).append(took)
    found = []
    for kind, costs in taken.items():
        mib, seconds, works = zip(*costs, strict=True)
        means = round(fmean(seconds), 2), round(fmean(works))
        found.append(Measured(*kind, len(costs), max(mib), max(seconds), *means))
    return found


def update(
    table: Path, config: Config, jobs: Iterable[Mapping[str, Any]], *, replace: bool = False
) -> int:
    """Merge what jobs took into a table; return the number of rows that come from them.

    Rows of kinds and scales that did not run stay. A kind that the table has keeps the larger
    figures and the mean of more jobs, since a run may have had few of it; `replace` takes those of
    the run.
    """
    new = measured(config, jobs)
    rows = {row[:3]: row for row in (read(table) if table.exists() else ())}
    for row in new:
        before = row if replace else rows.get(row[:3], row)
        mib, most = max(row.mib, before.mib), max(row.cpu_seconds, before.cpu_seconds)
        more = max(row, before, key=lambda one: one.jobs)
        rows[row[:3]] = more._replace(mib=mib, cpu_seconds=most)
    ordered = sorted(rows.values(), key=lambda r: (r.script, r.key, SCALES.index(r.scale)))
    # Whole numbers in full.
    told = [row._asdict() | {"mean_work": int(row.mean_work)} for row in ordered]
    write_rows(table, Measured._fields, told)
    read.cache_clear()
    return len(new)


def update_jobs(table: Path, config: Config, jobs: Iterable[Mapping[str, Any]]) -> int:
    """Merge what single jobs took on a CPU into a table; return how many come from `jobs`."""
    rows = {row[:3]: row for row in (read_jobs(table) if table.exists() else ())}
    new = [
        Taken(
            job["script"],
            name_of(job["script"], job["wildcards"]),
            job["scale"],
            job["cpu_seconds"],
            amount,
        )
        for job, _, amount in _counted(config, jobs)
        if job["script"] in SINGLE and job["scale"] != UNTOLD
    ]
    rows |= {row[:3]: row for row in new}
    ordered = sorted(rows.values(), key=lambda r: (r.script, r.of, SCALES.index(r.scale)))
    write_rows(table, Taken._fields, [row._asdict() for row in ordered])
    read_jobs.cache_clear()
    return len(new)
