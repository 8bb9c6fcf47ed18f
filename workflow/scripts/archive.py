"""Writes the supplement of a paper: settings, results and where they come from."""

import _package
from gradleak import archive
from gradleak.script import job

with job(snakemake):
    given = snakemake.input
    files = [*given.results, given.config, given.lock, *given.claims]
    archive.write(snakemake.output[0], given.provenance, files)
