"""PSNR of reconstructions to the mean image of their class."""

import pandas as pd

from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import Given

RUN = ["result", "model", "defence", "attack"]
COLUMNS = [*RUN, "batch", "psnr_class_mean", "least", "largest", "images", "missed"]


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each run of an attack and batch, ``all`` for all its batches.

    `psnr_class_mean` is the mean over images, in dB, of the PSNR of the reconstruction of an
    image's class against the mean of that class's images; `least` and `largest` are over images.
    Images whose class was not found are `missed` and left out.
    """
    columns = [*RUN, "batch", "metric", "value", "status"]
    found = pd.concat([read_csv(path, columns)[columns] for path in files["scores"]])
    found = found[found["metric"] == "psnr_class_mean"]
    ok = found["status"] == "ok"
    found = found.assign(value=found["value"].where(ok).astype(float), missed=~ok)
    parts = []
    for keys in (RUN, [*RUN, "batch"]):
        groups = found.groupby(keys, sort=True)
        part = groups["value"].agg(["mean", "min", "max", "size"])
        part["missed"] = groups["missed"].sum()
        parts.append(part.reset_index())
    parts[0]["batch"] = "all"
    out = pd.concat([parts[0], parts[1].assign(batch=parts[1]["batch"].astype(str))])
    names = {"mean": "psnr_class_mean", "min": "least", "max": "largest", "size": "images"}
    return out.rename(columns=names).sort_values([*RUN, "batch"], kind="stable")[COLUMNS]
