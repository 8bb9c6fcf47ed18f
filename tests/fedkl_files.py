"""Files as the pipeline writes them, with made-up answers, for the figures and tables of FedKL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradleak import targets
from gradleak.artifacts import write_csv, write_tensors
from gradleak.metrics.image import mse, psnr, ssim
from gradleak.targets import TargetSet

REASON = "No start came below the distance that a success has."


def originals(
    dataset: str = "photos10", shape: tuple[int, int, int] = (3, 16, 16), batches: int = 2
) -> TargetSet:
    """Smooth random images, another set for each data set."""
    rng = np.random.default_rng(sum(map(ord, dataset)))
    small = rng.integers(0, 256, (batches, 1, shape[0], 4, 4), dtype=np.uint8)
    return TargetSet(
        small.repeat(shape[1] // 4, axis=-2).repeat(shape[2] // 4, axis=-1),
        np.arange(batches).reshape(batches, 1),
        30 + np.arange(batches).reshape(batches, 1),
        0.0,
        tuple(f"image {b}" for b in range(batches)),
        {"dataset": dataset, "split": "test", "origin": "embedded"},
        {k: f"class_{k}" for k in range(batches)},
    )


class Panels:
    """Writes a target set, reconstructions and scores for each panel of a figure."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.words = folder, list[dict[str, Any]]()
        self.files: dict[str, list[str]] = {"targets": [], "reconstructions": [], "scores": []}
        self.rng = np.random.default_rng(0)

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
        runs, rows = [], []
        for batch, level in enumerate(levels):
            original = target.inputs(batch)[0]
            found = original + (level or 0.0) * self.rng.standard_normal(original.shape)
            if level is not None or keep:
                images[0, batch, 0, 0] = found
            record = {
                "model": words["model"],
                "seed": 0,
                "batch": batch,
                "answer": 0,
                "kind": "answer",
                "status": status if level is None else "ok",
                "reason": REASON if level is None else "",
            }
            runs.append(record)
            rows += self._scores(target, record, original, None if level is None else found)
        name = str(self.folder / f"panel-{len(self.words)}")
        targets.save(f"{name}-targets.safetensors", target, {})
        write_tensors(f"{name}.safetensors", {f"{words['model']}/images": images}, {"runs": runs})
        write_csv(f"{name}.csv", pd.DataFrame(rows).assign(attack=words.get("attack", "")))
        self.files["targets"].append(f"{name}-targets.safetensors")
        self.files["reconstructions"].append(f"{name}.safetensors")
        self.files["scores"].append(f"{name}.csv")
        self.words.append({"title": "", "experiment": "e", "defence": "none", **words})

    def _scores(
        self,
        target: TargetSet,
        record: dict[str, Any],
        original: np.ndarray,
        found: np.ndarray | None,
    ) -> list[dict[str, Any]]:
        values: dict[str, float | str] = {"mse": "", "psnr": "", "ssim": ""}
        if found is not None:
            values = {
                "mse": mse(original, found),
                "psnr": psnr(original, found),
                "ssim": ssim(original, np.clip(found, 0, 1)),
                "lpips_alex": 0.5,
            }
        place = {"precision": "float32", "index": int(target.indices[record["batch"], 0])}
        return [{**record, **place, "metric": m, "value": v} for m, v in values.items()]


def training(
    folder: Path,
    model: str,
    accuracy: float,
    *,
    epochs: int = 12,
    seeds: int = 1,
    client: bool = True,
) -> tuple[str, str]:
    """Curve and summary of a central training that comes to `accuracy`; a client's rows beside."""
    rows, last = [], []
    for seed in range(seeds):
        for epoch in range(1, epochs + 1):
            reached = accuracy * (1 - 0.5**epoch) + 0.01 * seed
            one = {"model": model, "seed": seed, "epoch": epoch, "rate": 0.1}
            one |= {"train_loss": 1.0, "train_accuracy": 0.9, "validation_loss": 2 - 2 * reached}
            rows.append({**one, "validation_accuracy": reached})
        sizes = {"train": 1000, "validation": 100, "test": 200}
        best = {"best_epoch": epochs, "test_accuracy": accuracy + 0.01 * seed, "images": "embedded"}
        last.append({"model": model, "seed": seed, "epochs": epochs, **best, **sizes})
    made = []
    for name, found in (("curve", rows), ("summary", last)):
        table = pd.DataFrame(found)
        if client:
            wrong = table.assign(client="0", **{table.columns[-1]: 0})
            table = pd.concat([table.assign(client=""), wrong])
        made.append(str(folder / f"{model}.{name}.csv"))
        write_csv(made[-1], table)
    return made[0], made[1]
