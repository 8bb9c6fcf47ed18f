"""Leakage after a client's local training, by epochs, batch size, rate and optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

import gradleak
from benchmarks import study
from benchmarks.client_networks import Images

KEYS = ("weights", "images", "epochs", "batch_size", "optimiser", "rate", "attack", "client")
# Attacks on one image and on batches; closed forms take one image.
ONE = ("rgap", "inverting_gradients", "surrogate")
SEVERAL = ("inverting_gradients", "surrogate")
RATES = {"sgd": (0.01, 0.1), "momentum": (0.01,), "adam": (0.001,)}
MOMENTUM = 0.9


def cases(epochs: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Clients: one image for some epochs; four images in batches of one, two and four."""
    for optimiser, rates in RATES.items():
        for rate in rates:
            for count in epochs:
                yield {"images": 1, "epochs": count, "batch_size": 1} | {
                    "optimiser": optimiser,
                    "rate": rate,
                }
    for size in (1, 2, 4):
        for count in epochs[:2]:
            own = {"optimiser": "sgd", "rate": 0.01}
            yield {"images": 4, "epochs": count, "batch_size": size} | own


def recipe_of(case: dict[str, Any]) -> gradleak.Recipe:
    """Return a case's recipe."""
    momentum = case["optimiser"] == "momentum"
    return gradleak.Recipe(
        case["rate"],
        case["epochs"],
        case["batch_size"],
        "sgd" if momentum else case["optimiser"],
        MOMENTUM if momentum else 0.0,
    )


def compare(data: Images, others: Images, folder: Path, amounts: dict[str, Any]) -> pd.DataFrame:
    """Attack updates of LeNet's clients on images of `data`; weights are trained on `others`.

    `amounts`: ``clients``, ``epochs`` of local training, ``iterations`` of searches, ``second`` of
    Gauss-Newton, ``train`` images and ``train_epochs`` of the trained weights.
    """
    runs = study.Runs(folder / "runs.csv", KEYS)
    networks = study.lenets(data, others, folder, amounts)
    for client in range(amounts["clients"]):
        for weights, model in networks.items():
            for case in cases(tuple(amounts["epochs"])):
                _attack(runs, data, model, {"weights": weights, **case, "client": client}, amounts)
    return runs.summary([key for key in KEYS if key != "client"])


def _attack(
    runs: study.Runs, data: Images, model: nn.Module, key: dict[str, Any], amounts: dict[str, Any]
) -> None:
    size, recipe = key["images"], recipe_of(key)
    images, classes = data.take(key["client"] * size, size)
    labels = classes.tolist()
    update = gradleak.capture(model, images, labels, recipe=recipe)
    for attack in ONE if size == 1 else SEVERAL:
        if attack == "surrogate" and len(recipe.batches(size)) == 1:
            continue
        more = study.amount(attack, amounts)

        def work(attack: str = attack, more: dict[str, Any] = more) -> study.Row:
            known = {"labels": labels, "seed": key["client"], **more}
            return study.attacked(update, model, images, attack, **known)

        runs.attempt({**key, "attack": attack}, work)
