"""Writes RA-i, accuracies and errors of ResNets as one table."""

import pandas as pd

import _package
from gradleak.artifacts import write_csv
from gradleak.script import job
from gradleak.tables import resnets

with job(snakemake):
    params = snakemake.params
    scores, trained, rank = (
        pd.concat([pd.read_csv(path) for path in snakemake.input[key]])
        for key in ("scores", "trained", "rank")
    )
    found = resnets.table(scores, trained, rank, params.networks, params.columns, **params.case)
    write_csv(snakemake.output[0], found)
