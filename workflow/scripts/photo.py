"""Writes the table and the figure of R-GAP on photographs of ImageNet's size."""

import _package
from benchmarks import photo
from gradleak.data import arrays
from gradleak.plotting import style
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job
from gradleak_audit.attack.samples import from_dataset

with job(snakemake):
    params = snakemake.params
    data = arrays.load(snakemake.input.data, params.source, "val")
    chosen = from_dataset(data, (3, params.side, params.side), 2).images[: len(photo.NETWORKS)]
    table, figure = photo.compare([*(chosen / 255.0)])
    write_csv(snakemake.output.table, table)
    style.save(figure, snakemake.output.pdf)
