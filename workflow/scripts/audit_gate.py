"""Ends with an error if a network leaks more than it may."""

import _package
from gradleak.runtime.artifacts import atomic
from gradleak.runtime.job import job
from gradleak_audit.report import ci_gate, files

with job(snakemake) as log:
    baseline = snakemake.params.baseline
    told = ci_gate.check(
        files.read(snakemake.input.result),
        snakemake.params.limit,
        files.read(baseline) if baseline else None,
        snakemake.params.counts,
    )
    with atomic(snakemake.output[0]) as temporary:
        temporary.write_text(f"{told}\n", encoding="utf-8")
    log.info("%s", told)
