"""Writes what clients share: gradients, and the label if it is granted."""

import _package
from gradleak import clients, gradients, targets
from gradleak.artifacts import write_tensors
from gradleak.models import files
from gradleak.script import job

with job(snakemake):
    params = snakemake.params
    tensors, metadata = gradients.capture_all(
        files.read(snakemake.input.model),
        targets.read(snakemake.input.targets),
        device=params.device,
        client=clients.sharing(snakemake.input.get("client")),
        **params.experiment,
    )
    metadata["provenance"] = {"settings": {"experiment": params.experiment}}
    write_tensors(snakemake.output[0], tensors, metadata)
