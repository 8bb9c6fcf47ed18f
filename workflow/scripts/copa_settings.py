"""Writes how COPA's optimisers, or its starts and pull-backs, compare on the same gradients."""

import _package  # isort: split

import pandas as pd

from benchmarks import copa_settings as settings
from gradleak.attacks.runner import Views
from gradleak.data import targets
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    params, given = snakemake.params, snakemake.input
    originals, tables = targets.read(given.targets), []
    for name, model, gradient in zip(params.models, given.models, given.gradients, strict=True):
        todo = (Views(model, gradient, params.seeds), originals, params.default)
        if snakemake.wildcards.compared == "starts":
            found = settings.attempts(*todo, settings.STARTS)
            printed = settings.paper_values(given.claims)
            tables.append(settings.starts(name, params.default, found, printed))
        else:
            found = settings.attempts(*todo, settings.OPTIMISERS)
            tables.append(settings.optimisers(name, params.default, found))
    write_csv(snakemake.output[0], pd.concat(tables).assign(images=params.images))
