"""Writes what a second thread gains jobs of each kind."""

import _package
from benchmarks import threads
from gradleak.runtime.artifacts import write_rows
from gradleak.runtime.job import job

with job(snakemake):
    rows = threads.compare(snakemake.params.overrides, snakemake.params.artifacts)
    write_rows(snakemake.output[0], list(rows[0]), rows)
