"""Writes the table of speeds: ours against the plain way, and the pipeline's wall time."""

import _package  # isort: split

from benchmarks import speed
from gradleak.runtime.artifacts import read_csv, write_csv
from gradleak.runtime.job import job

with job(snakemake) as log:
    rows = []
    for group in speed.groups(snakemake.input, snakemake.params, snakemake.threads):
        log.info("%s", speed.summary(group))
        rows += group
    # The pipeline's rows end the table.
    overhead = read_csv(snakemake.input.pipeline).to_dict("records")
    write_csv(snakemake.output[0], speed.table([*rows[1:], rows[0], *overhead]))
