"""Memory and minutes that a job requests from a scheduler, from measured jobs.

Memory follows from the most that jobs of the script took, by kind and scale
(`gradleak.pipeline.measured`); minutes also from what the job is expected to take
(`gradleak.pipeline.forecast`). For a scale without measurements, the next one is multiplied by the
ratio of work in config.yaml. Attacks that solve linear systems request at least what the sizes of
their layers say. Both double with each attempt.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from gradleak.config import loader as gradleak_config
from gradleak.config import yaml_checks
from gradleak.config.schema import Config
from gradleak.errors import GradleakError
from gradleak.operators import limits
from gradleak.pipeline.forecast import IMPORTS_SECONDS, Forecast
from gradleak.pipeline.measured import JOBS, TABLE, update, update_jobs
from gradleak.pipeline.work import LARGE, key_of, parameters, telling, work
from gradleak.runtime import job_records
from gradleak.settings.fields import SCALES

# MiB on top (some schedulers count Snakemake too, twice 190 MiB), share, times seconds: other
# machines and other loads take more.
MARGIN_MIB, MARGIN, PATIENCE = 500, 1.25, 3
LEAST_MINUTES = 5
UNMEASURED = 2000.0, 600.0  # MiB and seconds of a script without measurements
IMPORTS_MIB = 350  # memory of importing PyTorch, independent of the work
# Limits of a first attempt: a large node, two days. At paper scale many CPU jobs exceed them and
# need a GPU; training runs resume.
MOST_MIB, MOST_MINUTES = 128_000, 2_880

Amount = Callable[[Any, int], int]


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
    """Memory and minutes of jobs, by measured kinds of them and by what each may take."""

    def __init__(self, forecast: Forecast) -> None:
        self.config, self.rows, self.forecast = forecast.config, forecast.rows, forecast
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

    def _find(self, script: str, wildcards: Mapping[str, str]) -> tuple[float, float]:
        """Jobs of this kind at the nearest scale, scaled by work; else the most of the script."""
        scales = telling(self.config, script, wildcards)
        for scale in scales:
            there = self.config.at(scale)
            if most := self._most(script, key_of(there, wildcards), scale):
                mib, seconds = most
                now, then = (work(at, script, wildcards) for at in (self.config, there))
                longer, larger = (max(1, one / other) for one, other in zip(now, then, strict=True))
                return (
                    mib + max(0, mib - IMPORTS_MIB) * (larger - 1),
                    seconds + max(0, seconds - IMPORTS_SECONDS) * (longer - 1),
                )
        of_all = (self._most(script, None, scale) for scale in scales)
        return next(filter(None, of_all), UNMEASURED)

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
        expected = self.forecast.seconds(script, wildcards)
        minutes = math.ceil(PATIENCE * max(self._found(script, wildcards)[1], expected) / 60)
        return min(MOST_MINUTES, max(LEAST_MINUTES, minutes)) * int(2 ** (attempt - 1))


def doubling(mib: int, minutes: int) -> dict[str, Amount]:
    """Resources of a rule without measured jobs."""
    return {
        "mem_mb": lambda wildcards, attempt: mib * 2 ** (attempt - 1),
        "runtime": lambda wildcards, attempt: minutes * 2 ** (attempt - 1),
    }


def checked(config: Config, jobs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Memory that jobs took beside what they request, in MiB: the least to spare first."""
    rows, needs = [], {scale: Resources(Forecast(config.at(scale))) for scale in SCALES}
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
    """Update `workflow/resources.csv` and `jobs.csv` from the sidecars in the working folder."""
    prog, words = "python -m gradleak.pipeline.resources", "also where the table has larger figures"
    parser = argparse.ArgumentParser(prog, description=main.__doc__)
    parser.add_argument("--replace", action="store_true", help=words)
    compare = "print what jobs took beside what they request, and leave the table"
    parser.add_argument("--check", action="store_true", help=compare)
    words = "read the jobs of records below this folder instead"
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
        single = update_jobs(JOBS, config, jobs)
    except GradleakError as error:
        sys.exit(f"gradleak: {error}")
    print(f"{number} kinds of jobs measured, written to {TABLE}, and {single} jobs to {JOBS}")


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
