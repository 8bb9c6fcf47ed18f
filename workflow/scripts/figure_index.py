"""Writes the figure of c(M) against MSE."""

import _package  # isort: split

import pandas as pd

from gradleak import targets
from gradleak.figures import network_index, style
from gradleak.script import job

with job(snakemake):
    table = pd.read_csv(snakemake.input.table)
    grey = network_index.grey_error(targets.read(snakemake.input.targets))
    style.save(network_index.draw(table, grey), snakemake.output.pdf)
