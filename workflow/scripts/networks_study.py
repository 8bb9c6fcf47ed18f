"""Writes a study of audits: of twelve networks beside plain attacks, or of all of torchvision's."""

import _package
from benchmarks import audited_networks, torchvision_networks
from benchmarks.studies import place
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    params, name = snakemake.params, f"{snakemake.wildcards.networks}_networks"
    path = place(params.folder, name, params.amounts, params.code) / "runs.csv"
    if snakemake.wildcards.networks == "audited":
        found = audited_networks.compare(path, **params.amounts)
    else:
        found = torchvision_networks.compare(path)
    write_csv(snakemake.output[0], found)
