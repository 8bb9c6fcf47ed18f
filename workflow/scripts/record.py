"""Writes what docs/results keeps of a run."""

import _package
from gradleak.reporting import recording
from gradleak.runtime.job import job

with job(snakemake, altered=True):
    given = snakemake.input
    recording.write(
        snakemake.output[0], given.provenance, given.claims, given.tables, given.evidence
    )
