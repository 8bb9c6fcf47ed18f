"""Writes what clients share: gradients after the defence, the label if it is granted."""

import _package
from gradleak import gradients, targets
from gradleak.artifacts import write_tensors
from gradleak.defences import base as defences
from gradleak.models import files
from gradleak.provenance import record
from gradleak.script import job

with job(snakemake):
    params = snakemake.params
    tensors, metadata = gradients.capture_all(
        files.read(snakemake.input.model),
        targets.read(snakemake.input.targets),
        device=params.device,
        defence=defences.build(params.defence),
        **params.experiment,
    )
    settings = {"experiment": params.experiment, "defence": params.defence}
    metadata["provenance"] = record(settings, params.code)
    write_tensors(snakemake.output[0], tensors, metadata)
