"""Writes reconstructions that are made from others: denoised, or chosen among attacks."""

import _package
from gradleak.attacks.postprocess import denoise_all, hybrid_all
from gradleak.script import job

with job(snakemake) as log:
    params, settings = snakemake.params, snakemake.params.settings
    if settings["method"] == "h_gap":
        results = hybrid_all(list(snakemake.input))
    else:
        results = denoise_all(snakemake.input[0], settings["weight"])
    results.save(snakemake.output.images, snakemake.output.timing, {"settings": settings})
    log.info("%s", results.summary())
