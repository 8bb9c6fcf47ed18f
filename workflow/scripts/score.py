"""Writes the scores of one reconstruction file."""

import _package
from gradleak.data import targets
from gradleak.models import files
from gradleak.runtime.artifacts import write_rows
from gradleak.runtime.job import job
from gradleak.scoring import scores, scores_fedkl

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
