"""Writes what a client keeps of a locked model: its key, and the lock it starts with."""

import _package
from gradleak.client import client_keys
from gradleak.models import files
from gradleak.runtime.job import job

with job(snakemake):
    client_keys.create(
        snakemake.output[0], int(snakemake.wildcards.client), files.read(snakemake.input[0])
    )
