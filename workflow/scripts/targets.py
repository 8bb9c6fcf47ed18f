"""Writes a target set: the images under attack."""

import _package
from gradleak.data import arrays, catalogue, targets
from gradleak.runtime.job import job

with job(snakemake):
    params = snakemake.params
    dataset = catalogue.resolve(params.settings["dataset"], params.images)
    data = arrays.load(snakemake.input.dataset, dataset, params.settings["split"])
    chosen = targets.build(data, params.settings, params.number, params.size)
    targets.save(snakemake.output[0], chosen, {"settings": params.settings})
