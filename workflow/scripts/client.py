"""Writes what a client keeps of a locked model: its key, and the lock it starts with."""

import _package
from gradleak import clients
from gradleak.models import files
from gradleak.script import job

with job(snakemake):
    clients.create(
        snakemake.output[0],
        int(snakemake.wildcards.client),
        files.read(snakemake.input[0]),
    )
