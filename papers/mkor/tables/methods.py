"""Best and mean image of each batch by each attack, on the batches that all of them have."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from gradleak.data.targets import TargetSet
from gradleak.data.targets import read as read_targets
from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import Given
from gradleak.scoring.metrics.image import psnr, ssim_gauss

METRICS = {"psnr": psnr, "ssim_gauss": ssim_gauss}
PLACE = ["model", "defence"]
METHOD = ["result", "attack"]
COLUMNS = [*PLACE, *METHOD, "metric", "batch", "best", "mean", "images", "missed"]
# Images that need no gradient, and what they show of MNIST.
CONSTANT = {"black": 0.0, "grey": 0.5}


def _scores(paths: list[str]) -> pd.DataFrame:
    columns = [*PLACE, *METHOD, "seed", "batch", "answer", "metric", "value", "status"]
    found = pd.concat([read_csv(path, columns) for path in paths], ignore_index=True)
    own = (found["answer"] == 0) & found["metric"].isin(list(METRICS)) & (found["seed"] == 0)
    found = found.loc[own, columns]
    # As in the paper's tables, an image that was not reconstructed counts as 0.
    values = found["value"].where(found["status"] == "ok", 0.0).astype(float)
    return found.assign(value=values, missed=found["status"] != "ok")


def _common(found: pd.DataFrame) -> pd.DataFrame:
    """Batches, for each network and defence, that every attack there has tried."""
    method = found["result"] + " " + found["attack"]
    attacks = method.groupby([found[key] for key in PLACE]).transform("nunique")
    tried = method.groupby([found[key] for key in (*PLACE, "batch")]).transform("nunique")
    return found[tried == attacks]


def constants(targets: TargetSet, batches: list[int]) -> Iterator[tuple[str, str, int, np.ndarray]]:
    """Metrics of constant images against those of each batch: name, metric, batch, values (K,)."""
    for name, level in CONSTANT.items():
        for batch in batches:
            images = targets.pixels(targets.inputs(batch))
            for metric, measure in METRICS.items():
                flat = np.full(images.shape[1:], level)
                yield name, metric, batch, np.array([measure(image, flat) for image in images])


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table from files ``scores`` and ``targets``.

    A row has the `best` value of a batch and the `mean` over its images for an attack; ``all`` in
    `batch` is the mean over batches. Only batches that all attacks on the same network and defence
    tried are there. `missed` images count as 0. Attacks ``black`` and ``grey`` are images of one
    value, which anybody can answer with.
    """
    found = _common(_scores(list(files["scores"])))
    groups = found.groupby([*PLACE, *METHOD, "metric", "batch"], sort=True)
    each = groups["value"].agg(["max", "mean", "size"])
    each["missed"] = groups["missed"].sum()
    each = each.reset_index().rename(columns={"max": "best", "size": "images"})
    batches = sorted(int(batch) for batch in found["batch"].unique())
    targets = read_targets(files["targets"])
    flat = [
        ("", "none", "", name, metric, batch, values.max(), values.mean(), len(values), 0)
        for name, metric, batch, values in constants(targets, batches)
    ]
    each = pd.concat([each, pd.DataFrame(flat, columns=COLUMNS)], ignore_index=True)
    keys = [*PLACE, *METHOD, "metric"]
    sums = {"best": "mean", "mean": "mean", "images": "sum", "missed": "sum"}
    every = each.groupby(keys, sort=True).agg(sums).reset_index().assign(batch="all")
    out = pd.concat([every, each.assign(batch=each["batch"].astype(str))], ignore_index=True)
    return out.sort_values([*keys, "batch"], kind="stable")[COLUMNS]
