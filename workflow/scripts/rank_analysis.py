"""Writes the rank analysis of one model, group or family, layer by layer."""

import _package
from gradleak.analysis import rank_table
from gradleak.data import targets
from gradleak.models import files
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    table = rank_table.table(
        files.read(snakemake.input.model),
        targets.read(snakemake.input.targets),
        **snakemake.params.task,
        **snakemake.params.amounts,
    )
    write_csv(snakemake.output[0], table, check=True)
