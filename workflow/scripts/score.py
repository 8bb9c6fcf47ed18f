"""Writes the scores of one reconstruction file."""

import _package
from gradleak import scores, targets
from gradleak.artifacts import write_rows
from gradleak.models import files
from gradleak.script import job

with job(snakemake):
    rows = scores.score(
        snakemake.input.reconstruction,
        targets.read(snakemake.input.targets),
        files.read(snakemake.input.model),
        snakemake.params.case,
        snakemake.params.task,
    )
    write_rows(snakemake.output[0], scores.COLUMNS, rows)
