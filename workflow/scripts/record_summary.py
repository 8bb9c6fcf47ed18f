"""Counts the verdicts of a record, and shows them on a page."""

import _package  # isort: split

from pathlib import Path

from gradleak.claims import recorded
from gradleak.reporting import record_page
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    folder = Path(snakemake.output.summary).parent
    write_csv(snakemake.output.summary, recorded.summary(folder))
    record_page.write(folder, Path(snakemake.input.claims[0]).parents[1])
