"""CPU time that jobs may take, from measured ones.

That of a job in `workflow/jobs.csv`, at this scale or another, times the ratio of work. Any other
job is taken to work as fast as those of its kind in `workflow/resources.csv` did.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from gradleak.config.schema import Config
from gradleak.pipeline.measured import Measured, Taken, name_of, read, read_jobs
from gradleak.pipeline.work import key_of, telling, work
from gradleak.runtime.job_records import NAMES

IMPORTS_SECONDS = 1.5  # CPU time of importing PyTorch, independent of the work


class Forecast:
    """CPU time of jobs, meant for sums: a single search may end at a third or at three times it.

    Parameters
    ----------
    config
        Amounts of this run.
    rows
        Measured kinds of jobs, by default those of `workflow/resources.csv`.
    jobs
        Measured jobs, by default those of `workflow/jobs.csv`.
    """

    def __init__(
        self,
        config: Config,
        rows: Iterable[Measured] | None = None,
        jobs: Iterable[Taken] | None = None,
    ) -> None:
        self.config = config
        self.rows = list(read() if rows is None else rows)
        self.jobs: dict[tuple[str, str], dict[str, Taken]] = {}
        for job in read_jobs() if jobs is None else jobs:
            self.jobs.setdefault((job.script, job.of), {})[job.scale] = job

    @cached_property
    def _shares(self) -> dict[tuple[str, str, str], float]:
        """Time of jobs at this scale over what another scale tells, by script, kind and that scale.

        It is mostly below 1 at scale night, where searches end early.
        """
        sums: dict[tuple[str, str, str], tuple[float, float]] = {}
        for (script, of), scales in self.jobs.items():
            own = scales.get(self.config.scale)
            if own is None:
                continue
            with suppress(KeyError):  # id removed from config.yaml
                key = key_of(self.config, dict(zip(NAMES[script], of.split("/"), strict=True)))
                for other in scales.values():
                    kind = script, key, other.scale
                    took, told = sums.get(kind, (0.0, 0.0))
                    sums[kind] = took + own.cpu_seconds, told + _longer(other, own.work)
        return {kind: took / told for kind, (took, told) in sums.items()}

    def seconds(self, script: str, wildcards: Mapping[str, str]) -> float:
        """CPU seconds that a job may take; 0 if nothing like it was measured."""
        scales = telling(self.config, script, wildcards)
        taken = self.jobs.get((script, name_of(script, wildcards)), {})
        now = work(self.config, script, wildcards)[0]
        for scale in scales:
            if scale in taken:
                kind = script, key_of(self.config, wildcards), scale
                share = 1.0 if scale == self.config.scale else self._shares.get(kind, 1.0)
                return _longer(taken[scale], now) * share
        for scale in scales:
            key = key_of(self.config.at(scale), wildcards)
            for row in self.rows:
                if row[:3] == (script, key, scale):
                    longer = now / row.mean_work
                    return IMPORTS_SECONDS + max(0.0, row.mean_seconds - IMPORTS_SECONDS) * longer
        return 0.0

    def __call__(self, jobs: Iterable[Any]) -> str:
        """CPU time that jobs of Snakemake may take, as words; empty if there is nothing to tell.

        Rules whose jobs were not measured are named, since the sum leaves them out.
        """
        total, unknown = 0.0, set()
        for job in jobs:
            if job.rule.script:
                wildcards = dict(job.wildcards.items())
                seconds = self.seconds(Path(str(job.rule.script)).stem, wildcards)
                total += seconds
                unknown |= set() if seconds else {job.rule.name}
        without = f"time not measured: {', '.join(sorted(unknown))}" if unknown else ""
        if not total:
            return without
        told = f"about {_amount(total)}, as jobs measured before tell"
        return f"{told} ({without})" if without else told


def _amount(seconds: float) -> str:
    """Core minutes or hours, by two digits at most; no estimate is better."""
    hours, minutes = seconds / 3600, max(1, round(seconds / 60))
    if hours < 1.0:
        return f"{minutes} core minute{'s' * (minutes > 1)}"
    return f"{int(float(f'{hours:.2g}')) if hours >= 10.0 else round(hours, 1):,} core hours"


def _longer(job: Taken, amount: float) -> float:
    """CPU seconds of a job with this amount of work instead of its own."""
    return IMPORTS_SECONDS + max(0.0, job.cpu_seconds - IMPORTS_SECONDS) * amount / job.work
