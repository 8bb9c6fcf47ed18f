"""Writes the cells of a table over many images."""

import _package
from gradleak.artifacts import write_csv
from gradleak.script import job
from gradleak.tables import many_images, network_index

with job(snakemake):
    params = snakemake.params
    scores = network_index.read(snakemake.input.scores)
    found = many_images.table(scores, params.rows, params.columns, **params.case)
    write_csv(snakemake.output[0], found)
