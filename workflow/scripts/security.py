"""Writes ranks and c(M) of one model or family, layer by layer."""

import _package
from gradleak import security, targets
from gradleak.artifacts import write_csv
from gradleak.models import files
from gradleak.script import job

with job(snakemake):
    table = security.index_table(
        files.read(snakemake.input.model),
        targets.read(snakemake.input.targets),
        seeds=snakemake.params.seeds,
    )
    write_csv(snakemake.output[0], table, check=True)
