"""Writes tables and figure of how time and memory grow with sides, depth, batches and jobs."""

import _package
from benchmarks import growth, growth_figure, growth_fits, studies
from gradleak.data import arrays
from gradleak.plotting import style
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job
from gradleak_audit.attack.samples import from_dataset

with job(snakemake):
    params, output = snakemake.params, snakemake.output
    data = arrays.load(snakemake.input.data, params.source, "val")
    photo = from_dataset(data, (3, params.side, params.side), 1).images[0] / 255.0
    folder = studies.place(params.folder, "growth", params.amounts, params.measured)
    table = growth.growth(photo, folder, params.amounts)
    exponents = growth_fits.exponents(table)
    write_csv(output.table, table)
    write_csv(output.exponents, exponents)
    style.save(growth_figure.draw(table, exponents), output.pdf)
