"""Writes what an audit of one network found, its pictures, and what varies from run to run."""

import _package
from gradleak.runtime.artifacts import write_json
from gradleak.runtime.job import job
from gradleak_audit import from_config
from gradleak_audit.report import files

with job(snakemake) as log:
    params = snakemake.params
    found = from_config.audit(
        params.name,
        params.settings,
        dataset=next(iter(snakemake.input.get("dataset", [])), None),
        scale=params.scale,
        device=params.device,
    )
    files.save(snakemake.output.result, found.audit)
    files.save_pictures(snakemake.output.pictures, found.pictures)
    write_json(snakemake.output.seconds, found.seconds)
    log.info("%s", found.audit.verdict.sentence)
