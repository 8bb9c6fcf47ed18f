"""Writes what clients share: gradients, and the label if it is granted."""

import _package
from gradleak.client import capture, client_keys
from gradleak.data import targets
from gradleak.models import files
from gradleak.runtime.artifacts import write_tensors
from gradleak.runtime.job import job

with job(snakemake):
    params = snakemake.params
    tensors, metadata = capture.capture_all(
        files.read(snakemake.input.model),
        targets.read(snakemake.input.targets),
        device=params.device,
        client=client_keys.sharing(snakemake.input.get("client")),
        **params.experiment,
    )
    metadata["provenance"] = {"settings": {"experiment": params.experiment}}
    write_tensors(snakemake.output[0], tensors, metadata)
