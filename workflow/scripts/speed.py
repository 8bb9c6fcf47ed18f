"""Writes the table of speeds: ours against the plain dense way, and the pipeline's wall time."""

import tempfile
from pathlib import Path

import _package
from gradleak import targets
from gradleak.artifacts import write_csv
from gradleak.benchmarks import case, pipeline, speed
from gradleak.models import files
from gradleak.provenance import ROOT
from gradleak.script import job

with job(snakemake) as log, tempfile.TemporaryDirectory(prefix="gradleak-speed-") as folder:
    params, threads = snakemake.params, snakemake.threads
    models, images = files.read(snakemake.input.model), targets.read(snakemake.input.targets)
    chain = models.chains[0]
    path = str(Path(folder) / "case.safetensors")
    label = int(images.labels[0, 0])
    case.make(path, chain, models.of(chain, 0), images.inputs(0)[0], label, images.offset)
    last = pipeline.wall_time(str(ROOT.parents[1]), params.target, params.overrides, threads)
    rows = []
    for part in (speed.attack_rows, speed.rank_rows):
        rows += part(path, threads=threads)
        log.info("%s", "; ".join(f"{row['what']}: {row['ratio']:.0f}" for row in rows))
    write_csv(snakemake.output[0], speed.table([*rows, last]))
