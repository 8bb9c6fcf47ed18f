"""Writes the figure of c(M) against MSE."""

import _package  # isort: split

from gradleak import targets
from gradleak.artifacts import read_csv
from gradleak.figures import network_index, style
from gradleak.script import job

with job(snakemake):
    table = read_csv(snakemake.input.table)
    grey = network_index.grey_error(targets.read(snakemake.input.targets))
    style.save(network_index.draw(table, grey), snakemake.output.pdf)
