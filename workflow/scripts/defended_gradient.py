"""Writes what clients share after a defence."""

import _package
from gradleak import clients, targets
from gradleak.artifacts import read_tensors, write_tensors
from gradleak.defences import apply
from gradleak.defences import base as defences
from gradleak.models import files
from gradleak.provenance import record
from gradleak.script import job

with job(snakemake):
    params = snakemake.params
    tensors, metadata = read_tensors(snakemake.input.gradient)
    apply.defend_all(
        files.read(snakemake.input.model),
        targets.read(snakemake.input.targets),
        tensors,
        metadata,
        defences.build(params.defence),
        clients.sharing(snakemake.input.get("client")),
    )
    settings = metadata["provenance"]["settings"] | {"defence": params.defence}
    metadata["provenance"] = record(settings, params.code)
    write_tensors(snakemake.output[0], tensors, metadata)
