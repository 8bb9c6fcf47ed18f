"""Writes the reconstructions of one attack on one gradient file."""

import _package  # isort: split

import json
from pathlib import Path

from gradleak.attacks.finished import Finished
from gradleak.attacks.optimization import initialization
from gradleak.attacks.runner import attack_all
from gradleak.data import targets
from gradleak.runtime import job_records
from gradleak.runtime.job import job
from gradleak.servers.secret import Secrets

with job(snakemake) as log:
    params, settings = snakemake.params, snakemake.params.settings
    first, own_images = snakemake.input.get("first"), snakemake.input.get("own_images")
    secret, generator = snakemake.input.get("secret"), snakemake.input.get("generator")
    begin = None

    def identity():
        """Inputs, settings and code, of which what was finished has to be."""
        files = [job_records.checksum(path) for path in snakemake.input]
        how = [dict(settings), params.device, snakemake.threads, params.code, params.software]
        return json.dumps([files, how], sort_keys=True, default=str)

    # Not an output: what a killed job leaves there is where the next one goes on.
    finished = Finished(Path(snakemake.output.images).with_suffix(".finished"), identity)
    if first:
        begin = initialization.FromReconstruction(first[0], settings.get("answer", "answer"))
    if own_images:
        begin = initialization.OfOneClass(targets.read(own_images[0]))
    results = attack_all(
        snakemake.input.model,
        snakemake.input.gradient,
        settings,
        device=params.device,
        starts=begin,
        secrets=Secrets.read(secret[0]) if secret else None,
        generator=generator[0] if generator else None,
        finished=finished,
    )
    results.save(snakemake.output.images, snakemake.output.timing, {"settings": settings})
    finished.clear()
    log.info("%s", results.summary())
