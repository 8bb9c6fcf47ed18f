"""Writes what docs/results keeps of one experiment's scores."""

import _package
from gradleak.reporting import recording
from gradleak.reporting.provenance_record import of_rule
from gradleak.runtime.job import job

with job(snakemake, altered=True):
    given = snakemake.input
    told = of_rule(given.results, given, snakemake.params)
    recording.write_part(snakemake.output[0], told, given.results)
