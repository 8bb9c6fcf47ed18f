"""Counts the verdicts of a record."""

import _package  # isort: split

from pathlib import Path

from gradleak.claims import recorded
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    write_csv(snakemake.output[0], recorded.summary(Path(snakemake.output[0]).parent))
