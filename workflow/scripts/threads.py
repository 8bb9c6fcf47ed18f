"""Writes what a second thread gains jobs of each kind."""

import _package
from gradleak.artifacts import write_rows
from gradleak.benchmarks import threads
from gradleak.provenance import ROOT
from gradleak.script import job

with job(snakemake):
    params = snakemake.params
    rows = threads.compare(str(ROOT.parents[1]), params.overrides, params.artifacts)
    write_rows(snakemake.output[0], threads.COLUMNS, rows)
