"""Writes the table of speeds: ours against the plain way, and the pipeline's wall time."""

import _package  # isort: split

import tempfile
from pathlib import Path

from gradleak import targets
from gradleak.artifacts import read_csv, write_csv
from gradleak.benchmarks import (
    case,
    dlg,
    ggl,
    grnn,
    inverting,
    lock,
    mkor,
    pipeline,
    speed,
    training,
)
from gradleak.data import catalogue
from gradleak.models import files
from gradleak.provenance import ROOT
from gradleak.script import job

with job(snakemake) as log, tempfile.TemporaryDirectory(prefix="gradleak-speed-") as folder:
    given, params, threads = snakemake.input, snakemake.params, snakemake.threads
    path, single = (str(Path(folder) / f"{name}.safetensors") for name in ("case", "single"))
    case.make_dense(path, files.read(given.model), targets.read(given.targets))
    case.make_single(single, files.read(given.rgap_model), targets.read(given.rgap_targets))
    last = pipeline.wall_time(str(ROOT.parents[1]), params.target, params.overrides, threads)
    rows = speed.attack_rows(path, threads=threads)
    log.info("%s", speed.summary(rows))
    rows += speed.rank_rows(path, threads=threads)
    log.info("%s", speed.summary(rows))
    rows.append(speed.float32_row(single, threads=threads))
    log.info("%s", speed.summary(rows))
    images = targets.read(given.rgap_targets)
    rows.append(
        dlg.closed_form_row(
            files.read(given.rgap_model), images, evaluations=params.evaluations, threads=threads
        )
    )
    rows += dlg.table_rows(
        files.read(given.search_model), images, threads=threads, **params.searches
    )
    log.info("%s", speed.summary(rows))
    rows += mkor.rows(
        given.mkor_model,
        given.mkor_secret,
        given.mkor_targets,
        loss="raw_logits",
        images=params.mkor["images"],
        threads=threads,
    )
    rows.append(
        mkor.cross_entropy_row(
            given.own_model,
            given.own_secret,
            given.mkor_targets,
            images=params.mkor["images"],
            threads=threads,
        )
    )
    rows.append(mkor.soteria_row(given.soteria_model, given.soteria_targets, threads=threads))
    photos = params.mkor["photos"]
    rows.append(
        mkor.memory_row(given.photo_model, given.photo_targets, images=photos, threads=threads)
    )
    log.info("%s", speed.summary(rows))
    settings = params.training
    source = (catalogue.resolve(settings["dataset"], params.images), settings["split"])
    rows.append(
        training.training_row(
            given.resnet,
            given.dataset,
            settings,
            source=source,
            device=params.device,
            threads=threads,
            rounds=params.rounds,
        )
    )
    shared = {"device": params.device, "threads": threads}
    rows += lock.lock_rows(**shared, steps=params.lock_steps)
    # LeNet's steps are short.
    rows += lock.lock_rows(**shared, steps=10 * params.lock_steps, kind="lenet", width=12)
    log.info("%s", speed.summary(rows))
    for model, iterations in zip((given.resnet, given.deep), params.inverting, strict=True):
        rows.append(
            inverting.inverting_row(
                model,
                given.dataset,
                {"iterations": iterations, "rate": 0.1, "tv": 1e-4},
                source=source,
                scale=(settings["offset"], settings["std"]),
                device=params.device,
                rounds=params.rounds,
            )
        )
    rows.append(
        grnn.grnn_row(
            given.search_model,
            given.dataset,
            {"iterations": params.grnn},
            source=source,
            device=params.device,
            rounds=params.rounds,
        )
    )
    rows.append(
        ggl.population_row(
            given.resnet,
            given.dataset,
            population=params.population,
            source=source,
            scale=(settings["offset"], settings["std"]),
            device=params.device,
            rounds=params.rounds,
        )
    )
    log.info("%s", speed.summary(rows))
    overhead = read_csv(given.pipeline).to_dict("records")
    write_csv(snakemake.output[0], speed.table([*rows, last, *overhead]))
