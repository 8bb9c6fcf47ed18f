"""Writes what docs/results keeps of a paper's run."""

import _package
from gradleak.reporting import recording
from gradleak.reporting.provenance_record import of_rule
from gradleak.runtime.job import job

with job(snakemake, altered=True):
    given = snakemake.input
    told = of_rule(given.results, given, snakemake.params)
    kept = recording.Kept(given.claims, given.tables, given.evidence)
    recording.write(snakemake.output[0], told, kept)
