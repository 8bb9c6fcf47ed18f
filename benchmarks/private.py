"""Leakage under deployed defences, and the ε that they stand for."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import gradleak
from benchmarks import study
from benchmarks.client_networks import Images
from gradleak.adapters.opacus import epsilon

KEYS = ("weights", "defence", "settings", "images", "attack", "client")
RATE = 0.1  # learning rate of defences of updates
ATTACKS = ("rgap", "gauss_newton", "inverting_gradients")
DELTA = 1e-5  # of the whole, and of each round of local_dp
# Rounds, in each of which a client of so many images takes one step on a batch.
ROUNDS, HELD = 100, 600
# Defences with settings, named by what distinguishes them.
DEFENCES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("none", "", {}),
    ("gaussian_noise", "1 %", {"level": 0.01}),
    ("clipping", "norm 1", {"norm": 1.0}),
    ("percentile_privacy", "percentile 10, gamma 0.01", {"rate": RATE}),
    ("percentile_privacy", "percentile 90, gamma 0.01", {"percentile": 90.0, "rate": RATE}),
    *(
        (
            "local_dp",
            f"norm 1, epsilon {budget:g}",
            {"clipping_norm": 1.0, "epsilon": budget, "rate": RATE},
        )
        for budget in (1.0, 100.0, 10_000.0)
    ),
    *(
        ("dp_sgd", f"norm 1, sigma {sigma:g}", {"norm": 1.0, "noise_multiplier": sigma})
        for sigma in (1.0, 0.1, 0.001)
    ),
)


def compare(data: Images, others: Images, folder: Path, amounts: dict[str, Any]) -> pd.DataFrame:
    """Attack defended gradients of LeNet on images of `data`; weights are trained on `others`.

    `amounts`: ``clients``, ``iterations`` of searches, ``second`` of Gauss-Newton, ``train``
    images and ``train_epochs`` of the trained weights. ``epsilon`` is that of all rounds.
    """
    runs, networks = (
        study.Runs(folder / "runs.csv", KEYS),
        study.lenets(data, others, folder, amounts),
    )
    for client in range(amounts["clients"]):
        for (weights, model), size in product(networks.items(), (1, 4)):
            images, classes = data.take(client * size, size)
            labels = classes.tolist()
            shared = gradleak.capture(model, images, labels)
            for defence, words, settings in DEFENCES:
                sent = _defended(shared, model, defence, settings, images, labels, client)
                for attack in ATTACKS:
                    if size > 1 and attack == "rgap":
                        continue
                    key: study.Row = {"weights": weights, "defence": defence, "settings": words}
                    key |= {"images": size, "attack": attack, "client": client}
                    more: dict[str, Any] = {"labels": labels, "seed": client}
                    more |= study.amount(attack, amounts)
                    given = sent, model, images, attack
                    runs.attempt(key, partial(study.attacked, *given, **more))
    found = runs.summary([key for key in KEYS if key != "client"])
    return found.assign(epsilon=[_epsilon(row) for row in found.to_dict("records")])


def _defended(
    shared: Any,
    model: nn.Module,
    defence: str,
    settings: dict[str, Any],
    images: torch.Tensor,
    labels: list[int],
    seed: int,
) -> Any:
    if defence == "none":
        return shared
    batch: dict[str, Any] = {"images": images, "labels": labels} if defence == "dp_sgd" else {}
    return gradleak.defend(shared, model, defence, seed=seed, **settings, **batch)


def _epsilon(row: dict[Any, Any]) -> float:
    """ε of a row's defence after all rounds; NaN where there is none."""
    for defence, words, settings in DEFENCES:
        if (defence, words) == (row["defence"], row["settings"]):
            if defence == "dp_sgd":
                rate = int(row["images"]) / HELD
                return epsilon(settings["noise_multiplier"], rate, ROUNDS, DELTA, "rdp")
            if defence == "local_dp":
                # A Gaussian mechanism in each round.
                noise = float(np.sqrt(2.0 * np.log(1.25 / DELTA))) / settings["epsilon"]
                return epsilon(noise, 1.0, ROUNDS, DELTA, "rdp")
    return np.nan
