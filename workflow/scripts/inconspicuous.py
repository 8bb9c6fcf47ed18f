"""Writes what a client sees of the weights that a server sends."""

import _package
from gradleak import inconspicuous, targets
from gradleak.artifacts import write_rows
from gradleak.models import files
from gradleak.script import job

with job(snakemake):
    rows = inconspicuous.table(
        snakemake.wildcards.server,
        files.read(snakemake.input.honest),
        files.read(snakemake.input.sent),
        targets.read(snakemake.input.targets),
        snakemake.params.samples,
        "cross_entropy",
    )
    write_rows(snakemake.output[0], inconspicuous.COLUMNS, rows)
