"""Writes trained networks: weights of the best epoch, curves, accuracies, clients' own parts."""

import _package  # isort: split

from pathlib import Path

from gradleak.client import client_keys
from gradleak.data import arrays, catalogue
from gradleak.models import files
from gradleak.runtime.job import job
from gradleak.training import run, run_federated
from gradleak.training.outputs import Results

with job(snakemake) as log:
    params, output = snakemake.params, snakemake.output
    settings = params.settings
    dataset = catalogue.resolve(settings["dataset"], params.images)
    paths = {key: getattr(output, key) for key in ("weights", "curve", "summary")}
    paths |= {"checkpoints": params.checkpoints, "clients": output.get("clients", "")}
    results = Results(
        files.read(snakemake.input.model),
        arrays.load(snakemake.input.dataset, dataset, settings["split"]),
        settings,
        seeds=params.seeds,
        device=params.device,
        paths=paths,
        images=params.images,
        provenance={"settings": settings, "seeds": params.seeds},
        code=params.code,
        clients=[client_keys.read(path) for path in snakemake.input.get("clients", [])],
    )
    (run_federated if settings["federated"] else run).train_all(results)
    log.info("%s", Path(output.summary).read_text(encoding="utf-8"))
