"""Writes what one gradient's share in the sum of a batch's gradients gives away."""

import _package
from gradleak import leakage, targets
from gradleak.artifacts import write_csv
from gradleak.models import files
from gradleak.script import job

with job(snakemake):
    table = leakage.table(
        files.read(snakemake.input.model),
        targets.read(snakemake.input.targets),
        snakemake.params.model,
        draws=snakemake.params.draws,
    )
    write_csv(snakemake.output[0], table)
