"""Writes the weights that a malicious server sends, and the secret that it keeps."""

import _package
from gradleak.models import files
from gradleak.runtime.job import job
from gradleak.servers.base import create

with job(snakemake):
    params = snakemake.params
    paths = (snakemake.output.sent, snakemake.output.secret)
    create(paths, files.read(snakemake.input[0]), params.settings)
