"""Removes intermediate files of the current images and scale."""

import _package
from gradleak.pipeline import cleanup
from gradleak.runtime.job import job

with job(snakemake) as log:
    said = cleanup.words(cleanup.remove(snakemake.params.folders))
    log.info("%s", said)
    print(said)
