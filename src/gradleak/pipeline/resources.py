"""Memory and minutes that a job requests from a scheduler, from measured jobs.

`workflow/resources.csv` holds the most that jobs of each script took, by kind and scale, from the
sidecars of a run (`python -m gradleak.pipeline.resources`) or from a record's lists of files. For a
scale without measurements, the next smaller one is multiplied by the ratio of work in config.yaml.
Attacks that solve linear systems request at least what the sizes of their layers say. Both double
with each attempt.
"""

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from gradleak.config import loader as gradleak_config
from gradleak.config import yaml_checks
from gradleak.config.schema import Config
from gradleak.errors import ArtifactError, GradleakError
from gradleak.operators import limits
from gradleak.runtime import job_records
from gradleak.runtime.artifacts import write_rows
from gradleak.runtime.provenance import TREE
from gradleak.settings.fields import SCALES

TABLE = TREE / "workflow/resources.csv"
# Networks with more parameters: R-GAP's ResNets and VGG-16 in part; VGG-16 with all its nodes.
MEDIUM, LARGE = 1_000_000, 30_000_000
# MiB on top (some schedulers count Snakemake too, twice 190 MiB), share, times seconds: other
# machines and other loads take more.
MARGIN_MIB, MARGIN, PATIENCE = 500, 1.25, 3
LEAST_MINUTES = 5
UNMEASURED = 2000.0, 600.0  # MiB and seconds of a script without measurements
# Cost of importing PyTorch, independent of the work: MiB and seconds.
IMPORTS_MIB, IMPORTS_SECONDS = 350, 1.5
# Limits of a first attempt: a large node, two days. At paper scale many CPU jobs exceed them and
# need a GPU; training runs resume.
MOST_MIB, MOST_MINUTES = 128_000, 2_880
# Amounts of an entry of `attacks` that lengthen a job.
STEPS = ("starts", "iterations", "generations")

Amount = Callable[[Any, int], int]


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


def parameters(config: Config, model: str) -> int:
    """Parameters of all networks in a model's file, for one seed; 0 for families."""
    if model not in {**config.models, **config.families, **config.groups}:
        raise KeyError(model)
    members = [name for name in config.members(model) if name in config.models]
    return sum(config.chain(member).parameters for member in members)


def size_of(count: int) -> str:
    """Size of a network in words: ``small``, ``medium`` or ``large``."""
    return "large" if count > LARGE else "medium" if count > MEDIUM else "small"


def key_of(config: Config, wildcards: Mapping[str, str]) -> str:
    """Kind of a job: the method of its attack and the size of its network, if it has them.

    At scale night searches are told apart by paper: how early they end depends on its settings.
    """
    parts = []
    if "attack" in wildcards:
        attack = config.attacks[wildcards["attack"]]
        parts.append(str(attack.method))
        if attack.searches and config.scale == "night":
            parts.append(config.experiments[wildcards["experiment"]].paper)
    if "model" in wildcards:
        parts.append(size_of(parameters(config, wildcards["model"])))
    return " ".join(parts)


def _product(entry: Any, *names: str) -> int:
    values = (getattr(entry, name, None) for name in names)
    return math.prod(value for value in values if value is not None)


def work(config: Config, script: str, wildcards: Mapping[str, str]) -> tuple[int, int]:
    """Time and memory of a job, in units that are meaningful only as ratios.

    Time grows with images, seeds, steps, epochs, pixels and parameters; memory with parameters, or
    with activations: images that share a gradient, pixels, and the width, about the root of the
    parameters. Only attack scripts take an attack's steps.
    """
    time = batch = pixels = weights = 1
    if "experiment" in wildcards:
        experiment = config.experiments[wildcards["experiment"]]
        chosen = config.targets[experiment.targets]
        count = _product(chosen, "count")
        if script == "attack" and "attack" in wildcards:
            most = getattr(config.attacks[wildcards["attack"]], "images", None)
            count = min(count, most or count)
        time *= count * experiment.seeds
        batch = chosen.batch
    if "targets" in wildcards:
        chosen = config.targets[wildcards["targets"]]
        batch, pixels = _product(chosen, "count", "batch"), _product(chosen, "size") ** 2
    if script == "attack" and "attack" in wildcards:
        time *= _product(config.attacks[wildcards["attack"]], *STEPS)
    if "training" in wildcards:
        time *= _product(config.trainings[wildcards["training"]], "train", "epochs")
        time *= config.drawn(wildcards["model"], wildcards["training"])
    if "generator" in wildcards:
        time *= _product(config.generators[wildcards["generator"]], "images", "epochs")
    if "model" in wildcards:
        members = [m for m in config.members(wildcards["model"]) if m in config.models]
        pixels = max(1, sum(math.prod(config.chain(member).input) for member in members))
        weights = max(1, parameters(config, wildcards["model"]))
    return time * batch * pixels * weights, max(weights, batch * pixels * math.isqrt(weights))


def solving_mib(config: Config, wildcards: Mapping[str, str]) -> float:
    """MiB that an attack's linear systems may take, from the sizes of layers; 0 without any.

    Those of the largest layer, and the preconditioner of `gauss_newton`.
    """
    method = config.attacks[wildcards["attack"]].method if "attack" in wildcards else ""
    if method not in ("rgap", "copa", "gauss_newton"):
        return 0.0
    members = [name for name in config.members(wildcards["model"]) if name in config.models]
    chains = [config.chain(member) for member in members]
    layers = [layer.shape for chain in chains for layer in chain.convolutions]
    most = max(map(limits.solving_bytes, layers), default=0.0)
    if method == "gauss_newton":
        most += max(limits.preconditioner_bytes(math.prod(chain.input)) for chain in chains)
    return IMPORTS_MIB + most / 2**20 if most else 0.0


class Resources:
    """Memory and minutes of jobs, from measured ones `rows` (default `workflow/resources.csv`)."""

    def __init__(self, config: Config, rows: Iterable[Measured] | None = None) -> None:
        self.config = config
        self.rows = list(read() if rows is None else rows)
        self.known: dict[Any, tuple[float, float]] = {}

    def _most(self, script: str, key: str | None, scale: str) -> tuple[float, float] | None:
        """Most MiB and seconds of the jobs of a kind (of all kinds if `key` is None)."""
        rows = [r for r in self.rows if (r.script, r.scale) == (script, scale)]
        rows = [r for r in rows if key in (None, r.key)]
        return (max(r.mib for r in rows), max(r.cpu_seconds for r in rows)) if rows else None

    def _found(self, script: str, wildcards: Mapping[str, str]) -> tuple[float, float]:
        job = script, tuple(sorted(wildcards.items()))
        if job not in self.known:
            mib, seconds = self._find(script, wildcards)
            self.known[job] = max(mib, solving_mib(self.config, wildcards)), seconds
        return self.known[job]

    def scales(self) -> list[str]:
        """Scales whose jobs tell of this one's: itself and smaller ones, the largest first.

        Searches at scale night end early, so that they do not tell of others.
        """
        upto = SCALES[: SCALES.index(self.config.scale) + 1]
        return [one for one in reversed(upto) if one in (self.config.scale, "laptop", "smoke")]

    def _find(self, script: str, wildcards: Mapping[str, str]) -> tuple[float, float]:
        """Jobs of this kind at the nearest scale, scaled by work; else the most of the script."""
        for scale in self.scales():
            there = self.config.at(scale)
            if most := self._most(script, key_of(there, wildcards), scale):
                mib, seconds = most
                now, then = (work(at, script, wildcards) for at in (self.config, there))
                longer, larger = (max(1, one / other) for one, other in zip(now, then, strict=True))
                return (
                    mib + max(0, mib - IMPORTS_MIB) * (larger - 1),
                    seconds + max(0, seconds - IMPORTS_SECONDS) * (longer - 1),
                )
        of_all = (self._most(script, None, scale) for scale in self.scales())
        return next(filter(None, of_all), UNMEASURED)

    def expected(self, script: str, wildcards: Mapping[str, str]) -> float:
        """CPU seconds of a job if it works as fast as those of its kind did."""
        for scale in self.scales():
            key = key_of(self.config.at(scale), wildcards)
            for row in self.rows:
                if row[:3] == (script, key, scale):
                    longer = work(self.config, script, wildcards)[0] / row.mean_work
                    return IMPORTS_SECONDS + max(0.0, row.mean_seconds - IMPORTS_SECONDS) * longer
        return 0.0

    def __call__(self, script: str) -> dict[str, Amount]:
        """Resources of a rule whose jobs run `script`, as functions of wildcards and attempt."""
        return {
            "mem_mb": lambda wildcards, attempt: self.memory(
                script, dict(wildcards.items()), attempt
            ),
            "runtime": lambda wildcards, attempt: self.minutes(
                script, dict(wildcards.items()), attempt
            ),
        }

    def memory(self, script: str, wildcards: Mapping[str, str], attempt: int = 1) -> int:
        """MiB that a job requests, doubled at each further attempt."""
        mib = min(MOST_MIB, MARGIN_MIB + MARGIN * self._found(script, wildcards)[0])
        return math.ceil(mib / 100) * 100 * 2 ** (attempt - 1)

    def minutes(self, script: str, wildcards: Mapping[str, str], attempt: int = 1) -> int:
        """Minutes that a job requests, doubled at each further attempt."""
        # Larger jobs of its kind may not have been measured.
        seconds = max(self._found(script, wildcards)[1], self.expected(script, wildcards))
        minutes = math.ceil(PATIENCE * seconds / 60)
        return min(MOST_MINUTES, max(LEAST_MINUTES, minutes)) * int(2 ** (attempt - 1))


def doubling(mib: int, minutes: int) -> dict[str, Amount]:
    """Resources of a rule without measured jobs."""
    return {
        "mem_mb": lambda wildcards, attempt: mib * 2 ** (attempt - 1),
        "runtime": lambda wildcards, attempt: minutes * 2 ** (attempt - 1),
    }


@cache
def read(path: Path = TABLE) -> tuple[Measured, ...]:
    """Read a table of measured jobs; `ArtifactError` for missing columns or an unknown scale."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for number, row in enumerate(rows, start=2):
        try:
            mib, most, mean, total = (float(row[name]) for name in Measured._fields[4:])
            amounts = int(row["jobs"]), mib, most, mean, total
            ok = tuple(row) == Measured._fields and row["scale"] in SCALES and min(amounts) > 0
        except (KeyError, TypeError, ValueError):
            ok = False
        if not ok:
            raise ArtifactError(
                f"{path}, line {number}: expected {', '.join(Measured._fields)} with numbers above "
                "0; write the table with `python -m gradleak.pipeline.resources`."
            )
        found.append(Measured(row["script"], row["key"], row["scale"], *amounts))
    return tuple(found)


def measured(config: Config, jobs: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """Maximum cost of each kind of job that ran on a CPU, from sidecars or what a record lists."""
    taken: dict[tuple[str, str, str], list[tuple[float, float, float]]] = {}
    for job in jobs:
        if job.get("gpu"):
            continue
        at = config.at(job["scale"])
        try:
            key = key_of(at, job["wildcards"])
        except KeyError:
            continue  # id removed from config.yaml
        amount = float(work(at, job["script"], job["wildcards"])[0])
        took = job["peak_mib"], job["cpu_seconds"], amount
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
    return len(new)


def checked(config: Config, jobs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Memory that jobs took beside what they request, in MiB: the least to spare first."""
    rows, needs = [], {scale: Resources(config.at(scale)) for scale in SCALES}
    for job in jobs:
        script, at = job["script"], needs[job["scale"]]
        with suppress(KeyError):  # id removed from config.yaml
            key = key_of(at.config, job["wildcards"])
            asked = at.memory(script, job["wildcards"])
            rows.append((script, key, job["scale"], job["peak_mib"], asked))
    found = pd.DataFrame(rows, columns=["script", "key", "scale", "took", "requests"])
    found["share"] = found.took / found.requests
    return found.sort_values("share", ascending=False, ignore_index=True)


def main() -> None:
    """Update `workflow/resources.csv` from the sidecars in the working folder, or a record."""
    prog, words = "python -m gradleak.pipeline.resources", "also where the table has larger figures"
    parser = argparse.ArgumentParser(prog, description=main.__doc__)
    parser.add_argument("--replace", action="store_true", help=words)
    compare = "print what jobs took beside what they request, and leave the table"
    parser.add_argument("--check", action="store_true", help=compare)
    words = "read the attacks and scores of records below this folder instead"
    parser.add_argument("--record", type=Path, metavar="FOLDER", help=words)
    arguments = parser.parse_args()
    sidecars = [] if arguments.record else [job_records.FOLDER]
    for needed in (*sidecars, Path("config.yaml")):
        if not needed.exists():
            sys.exit(f"{needed} is missing; run `snakemake all` and this in the same folder.")
    try:
        config = gradleak_config.load(yaml_checks.read("config.yaml"))
        place = arguments.record
        jobs = job_records.recorded(place) if place else job_records.jobs(job_records.FOLDER)
        if arguments.check:
            print(checked(config, jobs).to_string(float_format="%.2f"))
            return
        number = update(TABLE, config, jobs, replace=arguments.replace)
    except GradleakError as error:
        sys.exit(f"gradleak: {error}")
    print(f"{number} kinds of jobs measured, written to {TABLE}")


def passing_gradients(config: Config) -> list[str]:
    """Experiments whose gradients are deleted once all attacks have read them.

    These are gradients of large networks (0.5 GB each for VGG-16) that only closed-form attacks,
    which take seconds, read: making one again outdates everything made from it.
    """
    return [
        name
        for name, entry in config.experiments.items()
        if any(parameters(config, model) > LARGE for model in entry.models)
        and not any(config.attacks[attack].searches for attack in entry.attacks)
    ]


if __name__ == "__main__":
    main()
