"""Downloads the official files of a data set and lists them with their checksums."""

import _package
from gradleak.data import official
from gradleak.runtime.job import job

with job(snakemake):
    official.download(snakemake.output.marker, snakemake.wildcards.dataset, snakemake.params.mirror)
