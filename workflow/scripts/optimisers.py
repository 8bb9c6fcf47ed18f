"""Writes how COPA's optimisers compare on the same gradients."""

import _package  # isort: split

import pandas as pd

from gradleak import targets
from gradleak.artifacts import write_csv
from gradleak.benchmarks import copa_settings as settings
from gradleak.script import job

with job(snakemake):
    params, given = snakemake.params, snakemake.input
    originals = targets.read(given.targets)
    rows = []
    for name, model, gradient in zip(params.models, given.models, given.gradients, strict=True):
        todo = list(settings.problems(model, gradient, originals, params.seeds))
        rows += settings.optimiser_rows(name, todo, params.default)
    table = pd.DataFrame(rows, columns=settings.OPTIMISER_COLUMNS).assign(images=params.images)
    write_csv(snakemake.output[0], table)
