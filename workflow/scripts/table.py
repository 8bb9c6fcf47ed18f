"""Writes a table by the module that its entry names."""

import _package  # isort: split

from importlib import import_module

from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    params = snakemake.params
    made = import_module(params.make).make(snakemake.input, params.words, params.case)
    write_csv(snakemake.output[0], made)
