"""Writes how COPA's starts and pull-backs compare on the same gradients, beside the paper."""

import _package  # isort: split

import pandas as pd

from gradleak import targets
from gradleak.artifacts import write_csv
from gradleak.benchmarks import copa_settings as settings
from gradleak.script import job

with job(snakemake):
    params, given = snakemake.params, snakemake.input
    originals, printed = targets.read(given.targets), settings.paper_values(given.claims)
    rows = []
    for name, model, gradient in zip(params.models, given.models, given.gradients, strict=True):
        todo = list(settings.problems(model, gradient, originals, params.seeds))
        rows += settings.start_rows(name, todo, params.default, printed)
    table = pd.DataFrame(rows, columns=settings.START_COLUMNS).assign(images=params.images)
    write_csv(snakemake.output[0], table)
