"""Writes the rank analysis of one model, group or family, layer by layer."""

import _package
from gradleak import rank_table, targets
from gradleak.artifacts import write_csv
from gradleak.models import files
from gradleak.script import job

with job(snakemake):
    table = rank_table.table(
        files.read(snakemake.input.model),
        targets.read(snakemake.input.targets),
        **snakemake.params.task,
        **snakemake.params.amounts,
    )
    write_csv(snakemake.output[0], table, check=True)
