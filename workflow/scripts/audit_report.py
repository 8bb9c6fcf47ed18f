"""Writes the page of one audit."""

import _package
from gradleak.auditing import files, page, prices
from gradleak.script import job

with job(snakemake):
    found = files.read(snakemake.input.result)
    timed = prices.with_seconds(found, files.read_seconds(snakemake.input.seconds))
    page.write(snakemake.output[0], timed, files.read_pictures(snakemake.input.pictures))
