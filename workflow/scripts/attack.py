"""Writes the reconstructions of one attack on one gradient file."""

import _package
from gradleak.attacks.run import attack_all
from gradleak.provenance import record
from gradleak.script import job

with job(snakemake) as log:
    params = snakemake.params
    results = attack_all(snakemake.input.model, snakemake.input.gradient, params.settings)
    results.save(
        snakemake.output.images, snakemake.output.timing, record(params.settings, params.code)
    )
    log.info("%s", results.summary())
