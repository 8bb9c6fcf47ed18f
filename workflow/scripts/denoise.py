"""Writes reconstructions that are denoised from others."""

import _package
from gradleak.attacks.postprocess import denoise_all
from gradleak.provenance import record
from gradleak.script import job

with job(snakemake) as log:
    params = snakemake.params
    results = denoise_all(snakemake.input[0], params.settings["weight"])
    results.save(
        snakemake.output.images, snakemake.output.timing, record(params.settings, params.code)
    )
    log.info("%s", results.summary())
