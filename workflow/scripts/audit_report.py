"""Writes the page of one audit."""

import _package
from gradleak.runtime.job import job
from gradleak_audit.mitigate import mitigation_cost
from gradleak_audit.report import files, page

with job(snakemake):
    found = files.read(snakemake.input.result)
    timed = mitigation_cost.with_seconds(found, files.read_seconds(snakemake.input.seconds))
    page.write(snakemake.output[0], timed, files.read_pictures(snakemake.input.pictures))
