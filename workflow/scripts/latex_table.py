"""Writes a table as LaTeX."""

import _package  # isort: split

from gradleak.reporting import latex
from gradleak.runtime.job import job

with job(snakemake):
    latex.write(snakemake.output[0], snakemake.input.table, snakemake.input.captions)
