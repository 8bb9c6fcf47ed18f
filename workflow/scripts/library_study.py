"""Writes a study of the library: attacks on clients with local training, norms or defences."""

import _package
from benchmarks import studies
from benchmarks.client_networks import Images
from gradleak.data import arrays
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    params, name = snakemake.params, snakemake.wildcards.study
    found = (
        arrays.load(snakemake.input[key], params.sources[split], split)
        for key, split in (("data", "test"), ("others", "train"))
    )
    data, others = (Images(*one.take(range(len(one)))) for one in found)
    folder = studies.place(params.folder, name, params.amounts, params.code)
    write_csv(snakemake.output[0], studies.make(name, data, others, folder, params.amounts))
