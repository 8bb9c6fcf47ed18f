"""Leakage by what an attacker knows of the statistics of a client's batch norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

import gradleak
from benchmarks import study
from benchmarks.client_networks import CLASSES, SHAPE, Images, fit
from gradleak.adapters.opacus import fixed
from gradleak.runtime.artifacts import read_tensors, write_tensors

KEYS = ("weights", "client_mode", "statistics", "client")
# Steps of one epoch with this rate: the update is its gradient.
RATE = 0.01


@dataclass(frozen=True)
class Case:
    """A client, and what is known of its norms."""

    client_mode: str  # evaluation, training, or group norm
    statistics: str  # shared, withheld, unknown, running, inferred, proxy, or none
    norms: str = "none"  # as in `gradleak.invert`

    @property
    def mode(self) -> str:
        """Mode of the network."""
        return "evaluation" if self.client_mode == "evaluation" else "training"


CASES = (
    Case("evaluation", "shared"),
    Case("evaluation", "withheld"),
    Case("training", "unknown"),
    Case("training", "running", "running"),
    Case("training", "inferred", "inferred"),
    Case("training", "proxy", "proxy"),
    Case("group norm", "none"),
)


def compare(data: Images, others: Images, folder: Path, amounts: dict[str, Any]) -> pd.DataFrame:
    """Attack gradients of a small network with batch norms, of batches from `data`.

    `others` gives the images of short trainings and of proxies. `amounts`: ``clients``, ``batch``,
    ``iterations``, ``train`` images, ``train_epochs``.
    """
    runs = study.Runs(folder / "runs.csv", KEYS)
    # The last images, on which nothing is trained.
    size = min(amounts["proxy"], len(others.labels) // 2)
    proxy, _ = others.take(len(others.labels) - size, size)
    amounts = {**amounts, "train": min(amounts["train"], len(others.labels) - size)}
    networks = {
        weights: {
            name: _network(change, name, weights, others, folder, amounts)
            for name, change in (("batch norm", None), ("group norm", fixed))
        }
        for weights in ("untrained", "trained")
    }
    for client in range(amounts["clients"]):
        images, classes = data.take(client * amounts["batch"], amounts["batch"])
        labels = classes.tolist()
        for weights, by_norm in networks.items():
            for case in CASES:
                if case.statistics == "withheld" and weights == "untrained":
                    continue  # these are what every attacker expects
                key = {"weights": weights, "client": client}
                key |= {name: getattr(case, name) for name in ("client_mode", "statistics")}
                given = case, by_norm, images, labels, proxy, client, amounts
                runs.attempt(key, partial(_attack, *given))
    return runs.summary([key for key in KEYS if key != "client"])


def network(seed: int = 0) -> nn.Module:
    """Four convolutions of 16 filters and more, each with a batch norm and ReLU, and two pools."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    channels = SHAPE[0]
    for filters, pool in ((16, False), (32, True), (32, False), (64, True)):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        channels = filters
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * (SHAPE[1] // 4) ** 2, CLASSES))


def _network(
    change: Callable[[nn.Module], nn.Module] | None,
    name: str,
    weights: str,
    others: Images,
    folder: Path,
    amounts: dict[str, Any],
) -> nn.Module:
    """An untrained network, or one with weights from the folder, which are made if missing."""
    model = network() if change is None else change(network())
    path = folder / f"{name.replace(' ', '_')}.safetensors"
    if weights == "untrained":
        return model
    if not path.exists():
        fit(model, *others.take(0, amounts["train"]), amounts["train_epochs"])
        write_tensors(path, {n: v.numpy() for n, v in model.state_dict().items()}, {})
    arrays, _ = read_tensors(path)
    model.load_state_dict({n: torch.from_numpy(v) for n, v in arrays.items()})
    return model


def _attack(
    case: Case,
    by_norm: Mapping[str, nn.Module],
    images: torch.Tensor,
    labels: list[int],
    proxy: torch.Tensor,
    seed: int,
    amounts: dict[str, Any],
) -> study.Row:
    group = case.client_mode == "group norm"
    model = by_norm["group norm" if group else "batch norm"]
    recipe = gradleak.Recipe(RATE)
    update = gradleak.capture(model, images, labels, recipe=recipe, mode=case.mode)
    attacked = model
    if case.statistics == "withheld":
        # The statistics of a new network, and weights that the client did train.
        attacked = network()
        attacked.load_state_dict(
            {n: v for n, v in model.state_dict().items() if "running" not in n}, strict=False
        )
        update = gradleak.Update(update.before, update.after, recipe, len(images))
    more = {"proxy": proxy} if case.norms == "proxy" else {}
    known = {"labels": labels, "seed": seed, "mode": case.mode, "norms": case.norms, **more}
    known["iterations"] = amounts["iterations"]
    return study.attacked(update, attacked, images, "inverting_gradients", **known)
