"""Writes ranks and c(M) of one model or family, layer by layer."""

import _package
from gradleak.analysis import copa_index
from gradleak.data import targets
from gradleak.models import files
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    models, chosen = files.read(snakemake.input.model), targets.read(snakemake.input.targets)
    table = copa_index.index_table(models, chosen, seeds=snakemake.params.seeds)
    write_csv(snakemake.output[0], table, check=True)
