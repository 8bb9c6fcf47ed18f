"""Makes the arrays of an embedded data set."""

import _package
from gradleak.data import embedded
from gradleak.runtime.job import job

with job(snakemake):
    embedded.write(snakemake.output.arrays, snakemake.wildcards.dataset, snakemake.wildcards.split)
