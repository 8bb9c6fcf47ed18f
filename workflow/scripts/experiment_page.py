"""Writes the page of one experiment."""

import _package  # isort: split

from gradleak.reporting import experiment_page
from gradleak.runtime.job import job

with job(snakemake):
    told = experiment_page.Told(**snakemake.params.told)
    experiment_page.write(snakemake.output[0], snakemake.input, told)
