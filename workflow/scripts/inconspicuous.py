"""Writes what a client sees of the weights that servers send."""

import _package
from gradleak.data import targets
from gradleak.models import files
from gradleak.runtime.artifacts import write_rows
from gradleak.runtime.job import job
from papers.mkor import inconspicuous

with job(snakemake):
    rows = inconspicuous.table(
        files.read(snakemake.input.honest),
        snakemake.params.servers,
        # Read as they are needed: a file may have more than 0.5 GB.
        map(files.read, snakemake.input.sent),
        targets.read(snakemake.input.targets),
        snakemake.params.samples,
        "cross_entropy",
    )
    write_rows(snakemake.output[0], inconspicuous.COLUMNS, rows, check=True)
