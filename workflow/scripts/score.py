"""Writes the scores of one reconstruction file."""

import _package
from gradleak import scores, targets
from gradleak.artifacts import write_csv
from gradleak.script import job

with job(snakemake):
    originals = targets.read(snakemake.input.targets)
    table = scores.score(snakemake.input.reconstruction, originals, snakemake.params.case)
    write_csv(snakemake.output[0], table)
