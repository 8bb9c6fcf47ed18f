"""Writes what leaves the first norm of networks with and without key-lock."""

import _package
from gradleak import distributions
from gradleak.artifacts import write_csv
from gradleak.script import job

with job(snakemake):
    params, files = snakemake.params, snakemake.input
    each = zip(params.cases, files.data, files.plain, files.locked, files.clients, strict=True)
    cases = [
        {
            **case,
            "data": data,
            "plain": plain,
            "locked": locked,
            "client": f"{folder}/0.safetensors",
        }
        for case, data, plain, locked, folder in each
    ]
    write_csv(snakemake.output[0], distributions.table(cases, **params.case))
