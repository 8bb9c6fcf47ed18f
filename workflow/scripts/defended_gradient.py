"""Writes what clients share after a defence."""

import _package
from gradleak.client import client_keys, gradient_files
from gradleak.client.defences import apply
from gradleak.client.defences import base as defences
from gradleak.data import targets
from gradleak.models import files
from gradleak.runtime.artifacts import write_tensors
from gradleak.runtime.job import job

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
        client_keys.sharing(snakemake.input.get("client")),
    )
    settings = metadata["provenance"]["settings"] | {"defence": params.defence}
    metadata["provenance"] = {"settings": settings}
    write_tensors(snakemake.output[0], tensors, metadata)
