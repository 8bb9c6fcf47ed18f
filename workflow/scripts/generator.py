"""Writes a generator: trained on a data set, or from weights of a user's own."""

import _package
from gradleak.data import arrays, catalogue
from gradleak.runtime.job import job
from gradleak.training.generators.make import convert_biggan, train_vae

with job(snakemake) as log:
    params, output, settings = snakemake.params, snakemake.output, snakemake.params.settings
    provenance = {"settings": settings}
    if settings["kind"] == "biggan":
        convert_biggan(settings, output.weights, provenance)
    else:
        dataset = catalogue.resolve(settings["dataset"], params.images)
        paths = {"weights": output.weights, "curve": params.curve}
        train_vae(
            arrays.load(snakemake.input[0], dataset, settings["split"]),
            settings,
            device=params.device,
            paths=paths | {"checkpoints": params.checkpoints},
            provenance=provenance,
            code=params.code,
        )
    log.info("%s", output.weights)
