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
        data = arrays.load(snakemake.input[0], dataset, settings["split"])
        paths = {key: getattr(params, key) for key in ("curve", "checkpoints")}
        paths["weights"] = output.weights
        how = {"device": params.device, "code": params.code}
        train_vae(data, settings, paths=paths, provenance=provenance, **how)
    log.info("%s", output.weights)
