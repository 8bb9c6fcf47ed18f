"""Writes c(M), errors and rank correlations of all networks."""

import _package
from gradleak.artifacts import write_csv
from gradleak.script import job
from gradleak.tables import network_index

with job(snakemake):
    case = snakemake.params.case
    scores = network_index.read(snakemake.input.scores)
    security = network_index.read(snakemake.input.security)
    write_csv(snakemake.output[0], network_index.table(scores, security, **case))
