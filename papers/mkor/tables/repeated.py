"""Images alone in their class against the same images where classes repeat (section 7)."""

import pandas as pd

from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import Given
from papers.mkor.batches import standard_error

RUN = ["result", "model", "defence", "attack"]
METRICS = ("psnr", "ssim_gauss")
COLUMNS = [*RUN, "metric", "labels", "value", "change", "error", "images"]
LABELS = ("unique", "random")  # of the first batch, and of the second with the same images


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table from files ``scores`` of two batches with the same images.

    `value` is the mean over images, `change` that of an image's value less that under unique
    labels, with its standard `error` over images. An image that was not found counts as 0.
    """
    columns = [*RUN, "batch", "index", "metric", "value", "status"]
    found = pd.concat([read_csv(path, columns)[columns] for path in files["scores"]])
    found = found[found["metric"].isin(METRICS)]
    found = found.assign(value=found["value"].where(found["status"] == "ok", 0.0).astype(float))
    rows = []
    for keys, own in found.groupby([*RUN, "metric"], sort=True):
        wide = own.pivot_table(index="index", columns="batch", values="value").dropna()
        for batch, labels in enumerate(LABELS):
            gaps = (wide[batch] - wide[0]).to_numpy()
            numbers = float(wide[batch].mean()), float(gaps.mean()), standard_error(gaps)
            rows.append((*keys, labels, *numbers, len(gaps)))
    return pd.DataFrame(rows, columns=COLUMNS)
