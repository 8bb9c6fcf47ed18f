"""CPU time that the jobs ahead of a run may take, from those in docs/results.

The same job may be recorded at this scale, or at a smaller one with less work. Any other job is
taken to work as fast as those of its kind in `workflow/resources.csv` did.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from gradleak.config.schema import Config
from gradleak.errors import ArtifactError
from gradleak.pipeline.resources import IMPORTS_SECONDS, Resources, key_of, work
from gradleak.runtime import job_records
from gradleak.runtime.provenance import TREE

RECORD = TREE / "docs/results"

Job = tuple[str, frozenset[tuple[str, str]]]  # script and wildcards


class Forecast:
    """CPU seconds of jobs by what a record's took; of those that it lacks, by `kinds`.

    Parameters
    ----------
    config
        Amounts of this run.
    kinds
        Measured kinds of jobs.
    record
        Folder of a record; one without jobs is none.
    """

    def __init__(self, config: Config, kinds: Resources, record: Path = RECORD) -> None:
        self.config, self.kinds, self.record = config, kinds, record

    @cached_property
    def _recorded(self) -> dict[Job, dict[str, float]]:
        """CPU seconds of each recorded job by scale; those on a GPU tell nothing of a CPU's."""
        try:
            jobs = job_records.recorded(self.record)
        except ArtifactError:
            return {}
        found: dict[Job, dict[str, float]] = {}
        for job in jobs:
            if not job["gpu"]:
                seconds = found.setdefault(_named(job["script"], job["wildcards"]), {})
                seconds[job["scale"]] = job["cpu_seconds"]
        return found

    def _scaled(self, script: str, wildcards: Mapping[str, str], scale: str) -> float:
        """CPU seconds by those of the same job at another scale, if time grows with work."""
        took = self._recorded[_named(script, wildcards)][scale]
        now, then = (work(at, script, wildcards)[0] for at in (self.config, self.config.at(scale)))
        return IMPORTS_SECONDS + max(0.0, took - IMPORTS_SECONDS) * now / then

    @cached_property
    def _shares(self) -> dict[tuple[str, str, str], float]:
        """What jobs took of what a smaller scale tells, by script, kind and that scale.

        Searches at scale night end early.
        """
        own, sums = self.config.scale, dict[tuple[str, str, str], list[float]]()
        for (script, named), seconds in self._recorded.items():
            wildcards = dict(named)
            smaller = set(self.kinds.scales()) & seconds.keys() - {own}
            with suppress(KeyError):  # id removed from config.yaml
                for scale in smaller if own in seconds else ():
                    kind = script, key_of(self.config, wildcards), scale
                    told = self._scaled(script, wildcards, scale)
                    pair = sums.setdefault(kind, [0.0, 0.0])
                    pair[0] += seconds[own]
                    pair[1] += told
        return {kind: took / told for kind, (took, told) in sums.items()}

    def _telling(self, wildcards: Mapping[str, str]) -> list[str]:
        """Scales at which the same job tells of this one, the largest first."""
        found = self.kinds.scales()
        searches = "attack" in wildcards and self.config.attacks[wildcards["attack"]].searches
        if self.config.scale == "paper" and not searches:
            found.insert(1, "night")
        return found

    def seconds(self, script: str, wildcards: Mapping[str, str]) -> float:
        """CPU seconds that a job may take; 0 if nothing like it was measured."""
        taken = self._recorded.get(_named(script, wildcards), {})
        for scale in self._telling(wildcards):
            if scale in taken:
                kind = script, key_of(self.config, wildcards), scale
                return self._scaled(script, wildcards, scale) * self._shares.get(kind, 1.0)
        return self.kinds.expected(script, wildcards)

    def __call__(self, jobs: Iterable[Any]) -> str:
        """CPU time that jobs of Snakemake may take, as words; empty if none of them was measured.

        Those without measurements, which are short or measure something themselves, are left out.
        """
        seconds = sum(
            self.seconds(Path(str(job.rule.script or "")).stem, dict(job.wildcards.items()))
            for job in jobs
        )
        if not seconds:
            return ""
        hours, minutes = seconds / 3600, max(1, round(seconds / 60))
        amount = f"{minutes} core minute{'s' * (minutes > 1)}"
        if hours >= 1.0:
            # Two digits; no estimate is better.
            amount = f"{int(float(f'{hours:.2g}')):,}" if hours >= 10.0 else f"{hours:.1f}"
            amount += " core hours"
        return f"about {amount}, as jobs measured before tell"


def _named(script: str, wildcards: Mapping[str, str]) -> Job:
    return script, frozenset(wildcards.items())
