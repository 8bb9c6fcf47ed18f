"""Makes arrays of a folder or an archive of one's own images."""

import _package
from gradleak.data import own_folder
from gradleak.runtime.job import job

with job(snakemake):
    of = snakemake.wildcards
    own_folder.write(snakemake.output.arrays, snakemake.params.source, of.dataset, of.split)
