"""Turns the official files of a data set into one file of arrays."""

import _package  # isort: split

from pathlib import Path

from gradleak.data import official
from gradleak.runtime.job import job

with job(snakemake):
    folder, of = Path(snakemake.input.marker).parent, snakemake.wildcards
    official.unpack(snakemake.output.arrays, folder, of.dataset, of.split)
