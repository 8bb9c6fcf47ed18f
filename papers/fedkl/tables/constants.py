"""Images of one colour, which need no gradient, by the metrics of Table VI except LPIPS."""

import numpy as np
import pandas as pd

from gradleak.data.targets import read
from gradleak.runtime.tidy import Given
from gradleak.scoring.metrics.image import FEDKL, psnr, ssim

METRICS = {**FEDKL, "psnr": psnr, "ssim": ssim}
COLUMNS = ["targets", "answer", "metric", "mean", "best", "images"]
LOWER_IS_BETTER = ("rmse_255",)


def answers(images: np.ndarray) -> dict[str, np.ndarray]:
    """Images (C, H, W) of one colour: black, grey, white, and the mean of `images` (n, C, H, W)."""
    shape = images.shape[1:]
    flat = {"black": 0.0, "grey": 0.5, "white": 1.0}
    mean = images.mean(axis=(0, 2, 3), keepdims=True)[0]
    return {name: np.full(shape, level) for name, level in flat.items()} | {
        "mean colour": np.broadcast_to(mean, shape)
    }


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each of files ``sets``, answer and metric, over all images."""
    rows = []
    for name, path in zip(words["sets"], files["sets"], strict=True):
        targets = read(path)
        batches = range(len(targets.indices))
        images = np.concatenate([targets.pixels(targets.inputs(batch)) for batch in batches])
        for answer, one in answers(images).items():
            for metric, measure in METRICS.items():
                values = [measure(image, one) for image in images]
                best = min(values) if metric in LOWER_IS_BETTER else max(values)
                rows.append((name, answer, metric, np.mean(values), best, len(images)))
    return pd.DataFrame(rows, columns=COLUMNS)
