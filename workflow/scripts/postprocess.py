"""Writes reconstructions that are made from others: denoised, or chosen among attacks."""

import _package
from gradleak.runtime.job import job
from gradleak.settings import registry

with job(snakemake) as log:
    settings = snakemake.params.settings
    results = registry.build("attacks", settings).make(list(snakemake.input))
    results.save(snakemake.output.images, snakemake.output.timing, {"settings": settings})
    log.info("%s", results.summary())
