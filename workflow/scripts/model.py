"""Writes a model: architecture, and weights of all its seeds."""

import _package
from gradleak.models.create import create
from gradleak.runtime.job import job

with job(snakemake):
    params = snakemake.params
    create(snakemake.output[0], snakemake.wildcards.model, params.settings, params.seeds)
