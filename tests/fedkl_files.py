"""Files as the pipeline writes them, with made-up answers, for the figures and tables of FedKL."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from figure_files import REASON, Files, rows, run, target_set
from gradleak.data.targets import TargetSet
from gradleak.runtime.artifacts import write_csv
from gradleak.scoring.metrics.image import mse, psnr, ssim

__all__ = ["REASON", "Panels", "originals", "training"]


def originals(
    dataset: str = "photos10", shape: tuple[int, int, int] = (3, 16, 16), batches: int = 2
) -> TargetSet:
    """Smooth random images, another set for each data set."""
    small = (shape[0], 4, 4)
    found = target_set(batches, 1, small, dataset, first=30, seed=sum(map(ord, dataset)))
    wide = found.images.repeat(shape[1] // 4, axis=-2).repeat(shape[2] // 4, axis=-1)
    return replace(found, images=wide)


class Panels(Files):
    """Writes a target set, reconstructions and scores for each panel of a figure."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.words, self.rng = list[dict[str, Any]](), np.random.default_rng(0)

    def add(
        self,
        target: TargetSet,
        noise: float | Sequence[float | None] | None,
        *,
        keep: bool = False,
        status: str = "failed",
        **words: Any,
    ) -> None:
        """A panel whose answers are the originals with `noise`, one level for all or one each.

        None is a run that failed; with `keep` the file has an image of it all the same.
        """
        count = len(target.images)
        levels = list(noise) if isinstance(noise, Sequence) else [noise] * count
        images = np.full((1, count, 1, 1, *target.shape), np.nan)
        runs, scores = [], []
        for batch, level in enumerate(levels):
            original = target.inputs(batch)[0]
            found = original + (level or 0.0) * self.rng.standard_normal(original.shape)
            values: dict[str, float | None] = {"mse": None, "psnr": None, "ssim": None}
            record = run(words["model"], batch, REASON, status)
            if level is not None or keep:
                images[0, batch, 0, 0] = found
            if level is not None:
                record = run(words["model"], batch)
                clipped = ssim(original, np.clip(found, 0, 1))
                values = {"mse": mse(original, found), "psnr": psnr(original, found)}
                values |= {"ssim": clipped, "lpips_alex": 0.5}
            runs.append(record)
            scores += rows(record, int(target.indices[batch, 0]), values)
        attack = words.get("attack", "")
        self.save({words["model"]: images}, runs, [{**r, "attack": attack} for r in scores], target)
        self.words.append({"title": "", "experiment": "e", "defence": "none", **words})


def training(
    folder: Path, model: str, accuracy: float, epochs: int = 12, seeds: int = 1, client: bool = True
) -> tuple[str, str]:
    """Curve and summary of a central training that comes to `accuracy`; a client's rows beside."""
    epochs_ = pd.DataFrame(product(range(seeds), range(1, epochs + 1)), columns=["seed", "epoch"])
    reached = accuracy * (1 - 0.5 ** epochs_["epoch"]) + 0.01 * epochs_["seed"]
    epochs_ = epochs_.assign(model=model, rate=0.1, train_loss=1.0, train_accuracy=0.9)
    epochs_ = epochs_.assign(validation_loss=2 - 2 * reached, validation_accuracy=reached)
    tested = [accuracy + 0.01 * seed for seed in range(seeds)]
    last = pd.DataFrame({"seed": range(seeds), "test_accuracy": tested})
    last = last.assign(model=model, epochs=epochs, best_epoch=epochs, images="embedded")
    last = last.assign(train=1000, validation=100, test=200)
    made = []
    for name, table in (("curve", epochs_), ("summary", last)):
        if client:
            wrong = table.assign(client="0", **{table.columns[-1]: 0})
            table = pd.concat([table.assign(client=""), wrong])
        made.append(str(folder / f"{model}.{name}.csv"))
        write_csv(made[-1], table)
    return made[0], made[1]
