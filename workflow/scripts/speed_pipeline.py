"""Writes what the pipeline adds to its jobs, and what a second core gains, as rows of speed.csv."""

import _package  # isort: split

import pandas as pd

from benchmarks import pipeline
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    rows = pipeline.overhead_rows(snakemake.params.target, snakemake.params.overrides)
    write_csv(snakemake.output[0], pd.DataFrame(rows))
