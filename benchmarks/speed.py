"""Rows of speed.csv: ours against plain references, in one run on one machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import case as cases
from benchmarks import dlg, ggl, grnn, inverting, lock, mkor, pipeline, rgap
from benchmarks import training as engine
from benchmarks.runner import Facts
from gradleak.data import targets
from gradleak.data.catalogue import resolve
from gradleak.models import files

COLUMNS = [
    "what",
    "ours_s",
    "reference_s",
    "ratio",
    "ours_mib",
    "reference_mib",
    "ours_error",
    "reference_error",
    "note",
]


def groups(given: Any, params: Any, threads: int) -> Iterator[list[Facts]]:
    """Measure one group after the other; `given` and `params` are those of the rule `speed`."""
    yield [pipeline.wall_time(params.target, params.overrides, threads)]
    with tempfile.TemporaryDirectory(prefix="gradleak-speed-") as folder:
        yield from _closed_forms(given, params, threads, Path(folder))
    networks, images = files.read(given.search_model), targets.read(given.rgap_targets)
    yield dlg.table_rows(networks, images, threads=threads, **params.amounts["searches"])
    yield from _mkor(given, params.mkor, threads)
    yield from _training(given, params, threads)
    yield from _searches(given, params)


def _closed_forms(given: Any, params: Any, threads: int, folder: Path) -> Iterator[list[Facts]]:
    double, single = (str(folder / f"{name}.safetensors") for name in ("double", "single"))
    cases.make_first(double, files.read(given.model), targets.read(given.targets))
    networks, images = files.read(given.rgap_model), targets.read(given.rgap_targets)
    cases.make_first(single, networks, images, single=True)
    yield rgap.attack_rows(double, threads=threads)
    yield rgap.rank_rows(double, threads=threads)
    yield [rgap.float32_row(single, threads=threads)]
    yield [dlg.closed_form_row(single, evaluations=params.evaluations, threads=threads)]


def _mkor(given: Any, amounts: dict[str, int], threads: int) -> Iterator[list[Facts]]:
    code = (given.mkor_model, given.mkor_secret, given.mkor_targets)
    own = (given.own_model, given.own_secret, given.mkor_targets)
    images, photos = amounts["images"], amounts["photos"]
    yield mkor.rows(*code, loss="raw_logits", images=images, threads=threads)
    yield [mkor.cross_entropy_row(*own, images=images, threads=threads)]
    yield [mkor.soteria_row(given.soteria_model, given.soteria_targets, threads=threads)]
    files_ = (given.photo_model, given.photo_targets)
    yield [mkor.memory_row(*files_, images=photos, threads=threads)]


def _training(given: Any, params: Any, threads: int) -> Iterator[list[Facts]]:
    amounts, shared = params.amounts, {"device": params.device, "threads": threads}
    more = {"source": _source(params), "rounds": amounts["rounds"], **shared}
    yield [engine.training_row(given.resnet, given.dataset, params.training, **more)]
    yield lock.lock_rows(steps=amounts["lock_steps"], **shared)
    # LeNet's steps are short.
    yield lock.lock_rows(steps=10 * amounts["lock_steps"], kind="lenet", width=12, **shared)


def _searches(given: Any, params: Any) -> Iterator[list[Facts]]:
    amounts, scale = params.amounts, (params.training["offset"], params.training["std"])
    images = {"dataset": given.dataset, "source": _source(params), "scale": scale}
    shared = {"device": params.device, "rounds": amounts["rounds"]}
    first, deep, small = (
        images | {"model": model} for model in (given.resnet, given.deep, given.search_model)
    )
    for case, iterations in zip((first, deep), amounts["inverting"], strict=True):
        yield [inverting.inverting_row(case, iterations=iterations, **shared)]
    small["scale"] = (0.0, 1.0)
    yield [grnn.grnn_row(small, iterations=amounts["grnn"], **shared)]
    yield [ggl.population_row(first, population=amounts["population"], **shared)]


def _source(params: Any) -> tuple[str, str]:
    """Data set and split of the training run."""
    return resolve(params.training["dataset"], params.images), params.training["split"]


def summary(rows: list[Facts]) -> str:
    """Ratios, one line for the log."""
    return "; ".join(f"{row['what']}: {row['ratio']:.1f}" for row in rows)


def table(rows: list[Facts]) -> pd.DataFrame:
    """Rows as a table with columns `COLUMNS`."""
    return pd.DataFrame(rows, columns=COLUMNS)
