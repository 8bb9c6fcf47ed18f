"""Writes a verdict for every claim of every paper."""

import _package  # isort: split

import pandas as pd

from gradleak.claims import Evidence, evaluate, load_all
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    files = snakemake.input
    evidence = Evidence.read(
        files.scores, files.security, files.index, files.rank, files.get("tables", [])
    )
    tables = [
        evaluate(claims, evidence, **snakemake.params.case, explanations=why)
        for claims, why in load_all(files.claims, files.explanations)
    ]
    write_csv(snakemake.output[0], pd.concat(tables, ignore_index=True))
