"""Writes the figure of c(M) against MSE."""

import pandas as pd

import _package
from gradleak.figures import network_index, style
from gradleak.script import job

with job(snakemake):
    table = pd.read_csv(snakemake.input.table)
    style.save(network_index.draw(table), snakemake.output.pdf)
