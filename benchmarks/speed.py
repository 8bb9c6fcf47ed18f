"""Rows of speed.csv: ours against plain references, in one run on one machine."""

import tempfile
from collections.abc import Iterator
from typing import Any

import pandas as pd

from benchmarks import dlg, ggl, grnn, inverting, lock, mkor, pipeline, rgap
from benchmarks import training as engine
from benchmarks.runner import Facts
from gradleak.data import targets
from gradleak.data.catalogue import resolve
from gradleak.models import files

COLUMNS = [
    *("what", "ours_s", "reference_s", "ratio", "ours_mib", "reference_mib"),
    *("ours_error", "reference_error", "note"),
]


def groups(given: Any, params: Any, threads: int) -> Iterator[list[Facts]]:
    """Measure one group after the other; `given` and `params` are those of the rule `speed`."""
    amounts, training = params.amounts, params.training
    device, rounds = {"device": params.device}, {"rounds": amounts["rounds"]}
    alone: dict[str, Any] = {"threads": threads}
    many = alone | {"images": params.mkor["images"]}
    source = resolve(training["dataset"], params.images), training["split"]
    networks, images = files.read(given.rgap_model), targets.read(given.rgap_targets)

    yield [pipeline.wall_time(params.target, params.overrides, threads)]
    with tempfile.TemporaryDirectory(prefix="gradleak-speed-") as folder:
        double, single = (f"{folder}/{name}.safetensors" for name in ("double", "single"))
        rgap.write_first(double, files.read(given.model), targets.read(given.targets))
        rgap.write_first(single, networks, images, single=True)
        yield rgap.attack_rows(double, **alone)
        yield rgap.rank_rows(double, **alone)
        yield [rgap.float32_row(single, **alone)]
        yield [dlg.closed_form_row(single, evaluations=params.evaluations, **alone)]
    yield dlg.table_rows(files.read(given.search_model), images, **alone, **amounts["searches"])

    code = (given.mkor_model, given.mkor_secret, given.mkor_targets)
    own = (given.own_model, given.own_secret, given.mkor_targets)
    yield mkor.rows(*code, loss="raw_logits", **many)
    yield [mkor.cross_entropy_row(*own, **many)]
    yield [mkor.soteria_row(given.soteria_model, given.soteria_targets, **alone)]
    photos = (given.photo_model, given.photo_targets)
    yield [mkor.memory_row(*photos, images=params.mkor["photos"], **alone)]

    stored = {"dataset": given.dataset, "source": source}
    first = stored | {"model": given.resnet}
    yield [engine.training_row(settings=training, **first, **rounds, **device, **alone)]
    yield lock.lock_rows(steps=amounts["lock_steps"], **device, **alone)
    # LeNet's steps are short.
    lenet: dict[str, Any] = {"kind": "lenet", "width": 12, **device, **alone}
    yield lock.lock_rows(steps=10 * amounts["lock_steps"], **lenet)

    scaled = stored | {"scale": (training["offset"], training["std"])}
    for model, count in zip((given.resnet, given.deep), amounts["inverting"], strict=True):
        case = scaled | {"model": model}
        yield [inverting.inverting_row(case, iterations=count, **device, **rounds)]
    small = stored | {"model": given.search_model, "scale": (0.0, 1.0)}
    yield [grnn.grnn_row(small, iterations=amounts["grnn"], **device, **rounds)]
    first = scaled | {"model": given.resnet}
    yield [ggl.population_row(first, population=amounts["population"], **device, **rounds)]


def summary(rows: list[Facts]) -> str:
    """Ratios, one line for the log."""
    return "; ".join(f"{row['what']}: {row['ratio']:.1f}" for row in rows)


def table(rows: list[Facts]) -> pd.DataFrame:
    """Rows as a table with columns `COLUMNS`."""
    return pd.DataFrame(rows, columns=COLUMNS)
