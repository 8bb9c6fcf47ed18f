"""Turns the official files of a data set into one file of arrays."""

import _package  # isort: split

from pathlib import Path

from gradleak.data import official
from gradleak.runtime.job import job

with job(snakemake):
    official.unpack(
        snakemake.output.arrays,
        Path(snakemake.input.marker).parent,
        snakemake.wildcards.dataset,
        snakemake.wildcards.split,
    )
