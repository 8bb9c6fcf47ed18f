"""Writes a verdict for every claim of every paper, and for every claim of ours."""

import _package  # isort: split

import pandas as pd

from gradleak.claims import WHOSE, Evidence, evaluate, load_all
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
    judged = pd.concat(tables, ignore_index=True)
    for whose, path in zip(WHOSE, snakemake.output, strict=True):
        write_csv(path, judged[judged["whose"] == whose])
