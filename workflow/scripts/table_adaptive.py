"""Writes how much a key-lock keeps from attackers who know something of it."""

import _package
from gradleak.artifacts import write_csv
from gradleak.script import job
from gradleak.tables import fedkl_adaptive

with job(snakemake):
    params = snakemake.params
    found = fedkl_adaptive.table(
        params.panels, list(snakemake.input.scores), params.base, **params.case
    )
    write_csv(snakemake.output[0], found)
