"""Writes what a second thread gains jobs of each kind."""

import _package
from gradleak.artifacts import write_rows
from gradleak.benchmarks import threads
from gradleak.script import job

with job(snakemake):
    rows = threads.compare(snakemake.params.overrides, snakemake.params.artifacts)
    write_rows(snakemake.output[0], list(rows[0]), rows)
