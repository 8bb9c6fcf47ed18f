"""Writes the scores of one reconstruction file."""

import _package
from gradleak import scores, scores_fedkl, targets
from gradleak.artifacts import write_rows
from gradleak.models import files
from gradleak.script import job

with job(snakemake):
    given = (
        snakemake.input.reconstruction,
        targets.read(snakemake.input.targets),
        files.read(snakemake.input.model),
        snakemake.params.case,
    )
    rows = scores.score(*given, snakemake.params.task)
    if snakemake.params.case["paper"] == "fedkl":
        rows += scores_fedkl.score(*given, snakemake.input.lpips)
    write_rows(snakemake.output[0], scores.COLUMNS, rows, check=True)
