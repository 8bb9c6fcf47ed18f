"""Writes what docs/results keeps of one experiment's scores, or of one training."""

import _package  # isort: split

from importlib import import_module

from gradleak.reporting import recording
from gradleak.reporting.provenance_record import of_rule
from gradleak.runtime.job import job

with job(snakemake, altered=True):
    given, params = snakemake.input, snakemake.params
    tables = None
    if asked := params.get("tables"):
        tables = {
            name: import_module(one["make"]).make(one["files"], one["words"], params.case)
            for name, one in asked.items()
        }
    told = of_rule(given.results, given, params)
    recording.write_part(snakemake.output[0], told, given.results, tables)
