"""Writes verdicts: on claims of the papers, on claims of ours, and on parts of sentences."""

import _package  # isort: split

import pandas as pd

from gradleak.claims import KINDS, Evidence, evaluate, load_all, tally
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
    for kind, path in zip(KINDS, snakemake.output, strict=True):
        write_csv(path, tally.of_kind(judged, kind))
