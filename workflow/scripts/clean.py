"""Removes intermediate files of the current images and scale."""

import _package
from gradleak import cleanup
from gradleak.script import job

with job(snakemake) as log:
    said = cleanup.words(cleanup.remove(snakemake.params.folders))
    log.info("%s", said)
    print(said)
