"""Writes a figure by the module that its entry names."""

import _package  # isort: split

from importlib import import_module

from gradleak.plotting import layout, style
from gradleak.runtime.job import job

with job(snakemake), layout.bare(snakemake.params.figures == "bare"):
    params = snakemake.params
    drawn = import_module(params.make).make(snakemake.input, params.words, params.scale)
    style.save(drawn, snakemake.output.pdf)
