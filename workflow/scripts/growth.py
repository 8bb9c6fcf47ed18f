"""Writes tables and figure of how time and memory grow with sides, depth, batches and jobs."""

import _package
from benchmarks import growth, growth_figure, growth_fits, studies
from gradleak.plotting import style
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    params, output = snakemake.params, snakemake.output
    folder = studies.place(params.folder, "growth", params.amounts, params.measured)
    table = growth.growth(folder, params.amounts)
    exponents = growth_fits.exponents(table)
    write_csv(output.table, table)
    write_csv(output.exponents, exponents)
    style.save(growth_figure.draw(table, exponents), output.pdf)
