"""Writes a figure of the module that the rule names."""

import _package  # isort: split

from importlib import import_module

from gradleak.figures import style
from gradleak.script import job

with job(snakemake):
    figure = import_module(f"gradleak.figures.{snakemake.params.figure}")
    drawn = figure.make(snakemake.input, snakemake.params.words, snakemake.params.scale)
    style.save(drawn, snakemake.output.pdf)
