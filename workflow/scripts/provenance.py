"""Writes what all results were made from."""

import _package
from gradleak.reporting.provenance_record import of_rule
from gradleak.runtime.artifacts import write_json
from gradleak.runtime.job import job

with job(snakemake, altered=True):
    given = snakemake.input
    write_json(snakemake.output[0], of_rule(given.results, given, snakemake.params))
