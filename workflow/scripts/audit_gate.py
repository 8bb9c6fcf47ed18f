"""Ends with an error if a network leaks more than it may."""

import _package
from gradleak.artifacts import atomic
from gradleak.auditing import files, gate
from gradleak.script import job

with job(snakemake) as log:
    baseline = snakemake.params.baseline
    told = gate.check(
        files.read(snakemake.input.result),
        snakemake.params.limit,
        files.read(baseline) if baseline else None,
    )
    with atomic(snakemake.output[0]) as temporary:
        temporary.write_text(f"{told}\n", encoding="utf-8")
    log.info("%s", told)
