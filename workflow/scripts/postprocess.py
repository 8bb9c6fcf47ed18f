"""Writes reconstructions that are made from others: denoised, or chosen among attacks."""

import _package
from gradleak.attacks.runner import build
from gradleak.runtime.job import job

with job(snakemake) as log:
    settings = snakemake.params.settings
    results = build(settings).make(list(snakemake.input))
    results.save(snakemake.output.images, snakemake.output.timing, {"settings": settings})
    log.info("%s", results.summary())
