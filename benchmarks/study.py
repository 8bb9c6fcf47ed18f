"""Studies of the library: attacks on many clients, one row each, and their summary.

Each attack is written down as soon as it is done, and a study that was cut off goes on there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import gradleak
from benchmarks.client_networks import Images, trained, untrained
from benchmarks.kept import Kept, Row
from gradleak.claims.statistics import interval_of_mean
from gradleak.errors import GradleakError, NotApplicable

LEVEL = 0.95
METRICS = ("psnr", "ssim")
TOLD = ("answered", "threat")
NUMBERS = (*METRICS, "distance", "drift")


class Runs(Kept):
    """Rows of a study in a CSV file, by what was attacked and how.

    Beside the keys, a status with its reason and CPU seconds, a row has words that are `told` and
    `numbers`.
    """

    def __init__(
        self,
        path: Path,
        keys: Sequence[str],
        told: Sequence[str] = TOLD,
        numbers: Sequence[str] = NUMBERS,
    ) -> None:
        numbers = (*numbers, "seconds")
        super().__init__(path, (*keys, "status", "reason", *told, *numbers), keys, numbers)

    def attempt(self, key: Row, work: Callable[[], Row]) -> None:
        """Do some work unless it is done, and keep its row; an attack that fails has a reason."""
        named = {name: str(value) for name, value in key.items()}
        if self.has(named):
            return
        started = time.process_time()
        try:
            found = {"status": "ok", "reason": "", **work()}
        except NotApplicable as error:
            found = {"status": "not applicable", "reason": str(error)}
        except GradleakError as error:
            found = {"status": "failed", "reason": str(error)}
        self.add({**named, **found, "seconds": round(time.process_time() - started, 2)})

    def summary(self, by: Sequence[str]) -> pd.DataFrame:
        """Means over runs with intervals of 95 % (Student's t), by some of the keys.

        Columns: the keys, ``n`` attempted, ``n_ok``, and for PSNR (dB) and SSIM the mean and the
        ends of its interval over the runs that gave images; ``own``, the share of these that the
        attack itself gave, where it has others to fall back on; mean CPU ``seconds``.
        """
        out = []
        for values, group in pd.DataFrame(self.rows).groupby(list(by), sort=False):
            ok = group[group["status"] == "ok"]
            row: Row = dict(zip(by, values, strict=True))
            row |= {"n": len(group), "n_ok": len(ok)}
            for metric in METRICS:
                numbers = ok[metric].to_numpy()
                low, high = interval_of_mean(numbers, log=False, level=LEVEL)
                row[metric] = numbers.mean() if len(numbers) else np.nan
                row |= {f"{metric}_low": low, f"{metric}_high": high}
            # Gauss-Newton's image may be kept where a closed form's does not explain an update.
            if "attack" in row and len(ok):
                row["own"] = float((ok["answered"] == row["attack"]).mean())
            out.append(row | {"seconds": group["seconds"].mean()})
        return pd.DataFrame(out)


def lenets(
    data: Images, others: Images, folder: Path, amounts: Mapping[str, Any]
) -> dict[str, torch.nn.Module]:
    """LeNet untrained, and trained on `others`; its weights are kept in the folder."""
    settings = {"images": amounts["train"], "epochs": amounts["train_epochs"]}
    path = folder / "lenet.safetensors"
    return {
        "untrained": untrained("lenet", 0),
        "trained": trained("lenet", others, data, settings, path),
    }


def attacked(
    shared: Any, model: torch.nn.Module, images: torch.Tensor, attack: str, **settings: Any
) -> Row:
    """Attack what a client shared; return mean PSNR and SSIM over its images, and the distance."""
    found = gradleak.invert(shared, model, tuple(images.shape[1:]), attack, **settings)
    scores = gradleak.score(images, found)
    each = {metric: float(scores[metric].mean()) for metric in METRICS}
    told = {"answered": found.attack, "threat": found.threat}
    return {**each, "distance": found.distance, "drift": found.drift, **told}


def amount(attack: str, amounts: Mapping[str, Any]) -> dict[str, int]:
    """Settings of an attack's length, by `amounts`; none for closed forms."""
    if attack == "gauss_newton":
        return {"iterations": amounts["second"]}
    return {} if attack == "rgap" else {"iterations": amounts["iterations"]}
