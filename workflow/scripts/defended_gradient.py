"""Writes what clients share after a defence."""

import _package
from gradleak import clients, gradient_files, targets
from gradleak.artifacts import write_tensors
from gradleak.defences import apply
from gradleak.defences import base as defences
from gradleak.models import files
from gradleak.script import job

with job(snakemake):
    params = snakemake.params
    models = files.read(snakemake.input.model)
    tensors, metadata = gradient_files.read(snakemake.input.gradient, models.chains)
    apply.defend_all(
        models,
        targets.read(snakemake.input.targets),
        tensors,
        metadata,
        defences.build(params.defence),
        clients.sharing(snakemake.input.get("client")),
    )
    settings = metadata["provenance"]["settings"] | {"defence": params.defence}
    metadata["provenance"] = {"settings": settings}
    write_tensors(snakemake.output[0], tensors, metadata)
