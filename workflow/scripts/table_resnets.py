"""Writes RA-i, accuracies and errors of ResNets as one table."""

import _package
from gradleak.artifacts import write_csv
from gradleak.script import job
from gradleak.tables import network_index, resnets

with job(snakemake):
    params, given = snakemake.params, snakemake.input
    parts = [network_index.read(given[key]) for key in ("scores", "trained", "rank")]
    found = resnets.table(*parts, params.networks, params.columns, **params.case)
    write_csv(snakemake.output[0], found)
