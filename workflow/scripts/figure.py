"""Writes a figure by the module that its entry names."""

import _package  # isort: split

from importlib import import_module

from gradleak.plotting import style
from gradleak.runtime.job import job

with job(snakemake):
    params = snakemake.params
    drawn = import_module(params.make).make(snakemake.input, params.words, params.scale)
    style.save(drawn, snakemake.output.pdf)
