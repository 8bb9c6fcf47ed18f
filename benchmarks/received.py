"""Rates at which `gradleak.inspect` takes honest networks for shaped ones, and sees attackers'.

    python -m benchmarks.received FOLDER

keeps each network in the folder as it is inspected, and writes its rates.csv, which is recorded as
src/gradleak/library/inspect_rates.csv. Images are the embedded photos.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn

import gradleak
from benchmarks import norms, study
from benchmarks.client_networks import CLASSES, SHAPE, Images, untrained
from benchmarks.runner import arguments
from gradleak.claims.statistics import wilson
from gradleak.data import embedded
from gradleak.library.weight_tests import SHAPED
from gradleak.runtime.artifacts import write_csv

Made = Callable[[], tuple[nn.Module, nn.Module | None]]  # a network, and the round before
KEYS = ("group", "case", "network", "base", "seed")
LOOKS = ("weights", "previous", "batch")
BATCH = 16
AMOUNTS = {"fresh": 4, "trained": 2, "train_images": 600}
FIRST = 1000  # seed; limits were set with others
TARGET = 0  # the class that is fished for


def lenet5() -> nn.Module:
    """LeNet-5 for colour images."""
    features: list[nn.Module] = []
    for channels, filters, padding in ((SHAPE[0], 6, 2), (6, 16, 0)):
        features += [nn.Conv2d(channels, filters, 5, padding=padding), nn.Sigmoid()]
        features += [nn.AvgPool2d(2)]
    return _classified(features, 576, (120, 84), nn.Sigmoid)


def vgg() -> nn.Module:
    """Three convolutions of 3x3 with ReLU and max pools, and three fully connected layers."""
    features: list[nn.Module] = []
    for channels, filters in ((SHAPE[0], 16), (16, 32), (32, 64)):
        features += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return _classified(features, 1024, (128, 64), nn.ReLU)


def mlp() -> nn.Module:
    """Three fully connected layers with ReLU."""
    return _classified([], int(np.prod(SHAPE)), (128, 64), nn.ReLU)


def _classified(
    features: list[nn.Module], inputs: int, widths: tuple[int, ...], act: type[nn.Module]
) -> nn.Module:
    layers: list[nn.Module] = [*features, nn.Flatten()]
    for width in widths:
        layers += [nn.Linear(inputs, width), act()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, CLASSES))


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "LeNet-5": lenet5,
    "VGG": vgg,
    "MLP": mlp,
    "batch norms": norms.network,
    "DLG's LeNet": partial(untrained, "lenet", 0),
}
CHAINS = ("LeNet-5", "VGG")
INITIAL: Mapping[str, Callable[[Any], Any] | None] = {
    "PyTorch default": None,
    "Kaiming uniform": partial(nn.init.kaiming_uniform_, nonlinearity="relu"),
    "Kaiming normal": partial(nn.init.kaiming_normal_, nonlinearity="relu"),
    "Xavier uniform": nn.init.xavier_uniform_,
    "Xavier normal": nn.init.xavier_normal_,
    "orthogonal": nn.init.orthogonal_,
    "DLG's uniform": partial(nn.init.uniform_, a=-0.5, b=0.5),
}
# Optimiser, learning rate, weight decay, epochs; the last one lets units die.
TRAININGS: Mapping[str, tuple[str, float, float, int]] = {
    "SGD, 1 epoch": ("SGD", 0.02, 0.0, 1),
    "SGD, weight decay": ("SGD", 0.02, 5e-4, 10),
    "SGD, ten times the decay": ("SGD", 0.02, 5e-3, 10),
    "Adam": ("Adam", 1e-3, 0.0, 5),
    "AdamW": ("AdamW", 3e-3, 1e-2, 10),
    "Adam, L2 of 5e-3": ("Adam", 3e-3, 5e-3, 30),
}
COLLAPSED = "Adam, L2 of 5e-3"


def fresh(network: str, initial: str, seed: int) -> nn.Module:
    """A network with initial weights; biases are PyTorch's, but for DLG's uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = NETWORKS[network]()
        # `untrained` seeds itself.
        torch.manual_seed(seed)
        fill = INITIAL[initial]
        for part in module.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                part.reset_parameters()
                if fill is not None:
                    fill(part.weight)
                if initial == "DLG's uniform" and part.bias is not None:
                    nn.init.uniform_(part.bias, -0.5, 0.5)
    return module.eval()


def rounds(
    module: nn.Module, how: tuple[str, float, float, int], data: Images, count: int, seed: int
) -> tuple[nn.Module, nn.Module]:
    """The network after a training, and an epoch before its end."""
    name, rate, decay, epochs = how
    draw = torch.Generator().manual_seed(seed)
    first = int(torch.randint(len(data.labels), (1,), generator=draw))
    images, labels = data.take(first, count)
    more = {"momentum": 0.9} if name == "SGD" else {}
    given: dict[str, Any] = {"lr": rate, "weight_decay": decay, **more}
    optimiser = getattr(torch.optim, name)(module.parameters(), **given)
    before = module
    for _ in range(epochs):
        before = copy.deepcopy(module).eval()
        module.train()
        for part in torch.randperm(count, generator=draw).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(images[part]), labels[part]).backward()
            optimiser.step()
    return module.eval(), before


def _mkor(model: nn.Module, seed: int, **settings: Any) -> None:
    poisoned, _ = gradleak.poison(model, SHAPE, seed=seed, **settings)
    model.load_state_dict(poisoned.state_dict())


def _last(model: nn.Module) -> nn.Linear:
    return [part for part in model.modules() if isinstance(part, nn.Linear)][-1]


def _first(model: nn.Module) -> nn.Linear:
    return next(part for part in model.modules() if isinstance(part, nn.Linear))


def _fishing(model: nn.Module, seed: int) -> None:
    """Class fishing, as `gradleak.servers.class_fishing`."""
    layer = _last(model)
    others = torch.arange(layer.out_features) != TARGET
    layer.weight[others] = 0.0
    layer.bias[others] = 10.0
    layer.bias[TARGET] = 0.0


def _scaled(model: nn.Module, seed: int) -> None:
    """Fish with a last layer that is 300 times as large, and one bias that is lowered before."""
    layer = _last(model)
    layer.bias[TARGET] -= 1.0
    for value in layer.parameters():
        value.mul_(300.0)


def _large_row(model: nn.Module, seed: int) -> None:
    """Fish with a row ten times as large, which gives the class's images larger gradients."""
    _last(model).weight[TARGET] *= 10.0


def _imprint(model: nn.Module, seed: int, noise: float = 0.0, drawn: bool = False) -> None:
    """Robbing the Fed: all rows measure one thing, and biases are its quantiles.

    `noise` is relative to a row; `drawn` takes biases at random from the same distribution.
    """
    layer, draw = _first(model), torch.Generator().manual_seed(seed)
    m, n = layer.weight.shape
    row = torch.randn(n, generator=draw) / n**0.5
    layer.weight[:] = row + noise * torch.randn(m, n, generator=draw) / n**0.5
    levels = torch.rand(m, generator=draw) if drawn else (torch.arange(m) + 0.5) / m
    layer.bias[:] = -0.3 * torch.from_numpy(stats.norm.ppf(levels.numpy())).float()


def _trap(model: nn.Module, seed: int, drawn: bool = False) -> None:
    """Trap weights: half of a row is normal, the other −0.95 times that in another order.

    `drawn` draws the sizes of both halves independently, one negative and one positive.
    """
    layer, draw = _first(model), torch.Generator().manual_seed(seed)
    n = layer.in_features
    half, scale = n // 2, n**-0.5
    for row in layer.weight:
        low, high = torch.randn(2, half, generator=draw) * scale
        order = torch.randperm(n, generator=draw)
        row[order[:half]] = -low.abs() if drawn else low
        row[order[half : 2 * half]] = 0.95 * (high.abs() if drawn else -low)
    layer.bias[:] = 0.0


# Attackers whose patterns the tests were made for, and some that avoid them.
ATTACKERS: Mapping[str, tuple[tuple[str, ...], Callable[..., None]]] = {
    "MKOR, naive": (CHAINS, partial(_mkor, convolutions="naive", classifier="naive")),
    "MKOR, eq. 10 to 13 and 20": (CHAINS, partial(_mkor, classifier="paired", spare="keep")),
    "MKOR, classifier untouched": (CHAINS, _mkor),
    "class fishing": (tuple(NETWORKS), _fishing),
    "fishing, last layer scaled": (tuple(NETWORKS), _scaled),
    "imprint": (("LeNet-5", "VGG", "MLP"), _imprint),
    "imprint, rows with 10 % of noise": (("LeNet-5", "VGG", "MLP"), partial(_imprint, noise=0.1)),
    "trap weights": (("LeNet-5", "VGG", "MLP"), _trap),
}
AVOIDING: Mapping[str, tuple[tuple[str, ...], Callable[..., None]]] = {
    "class fishing, one row ten times as large": (tuple(NETWORKS), _large_row),
    "imprint, noise, biases drawn": (
        ("LeNet-5", "VGG", "MLP"),
        partial(_imprint, noise=0.1, drawn=True),
    ),
    "trap weights, halves drawn": (("LeNet-5", "VGG", "MLP"), partial(_trap, drawn=True)),
}


def compare(data: Images, others: Images, folder: Path, amounts: dict[str, Any]) -> pd.DataFrame:
    """Inspect honest and shaped networks; rates of those that look shaped, with intervals.

    `data` gives the client's batch of 16, `others` images to train on. `amounts`: ``fresh`` and
    ``trained`` seeds, ``train_images``, and names of ``networks``, by default all.

    Columns: ``group``, ``case``, ``n``, and the share with its Wilson interval (95 %) by weights
    alone, beside those of the ``previous`` round, and with a ``batch``; median and largest
    ``dsnr``, each the largest of a network's layers.
    """
    runs = study.Runs(folder / "runs.csv", KEYS, ("looks", "why"), (*LOOKS, "dsnr"))

    def attempt(group: str, case: str, network: str, base: str, seed: int, make: Made) -> None:
        key = dict(zip(KEYS, (group, case, network, base, seed), strict=True))
        runs.attempt(key, lambda: _look(*make(), *data.take(seed * BATCH, BATCH)))

    chosen = amounts.get("networks", [*NETWORKS])
    count = amounts["train_images"]
    trained = range(FIRST, FIRST + amounts["trained"])
    for network in chosen:
        for case in INITIAL:
            for seed in range(FIRST, FIRST + amounts["fresh"]):
                attempt("honest", case, network, "", seed, partial(_fresh, network, case, seed))
        for case, how in TRAININGS.items():
            group = "collapsed" if case == COLLAPSED else "honest"
            for seed in trained:
                make = partial(_trained, network, how, others, count, seed)
                attempt(group, case, network, "", seed, make)
    shaped = (("attacker", ATTACKERS), ("avoiding", AVOIDING))
    for group, case, (networks, change) in ((g, c, v) for g, cs in shaped for c, v in cs.items()):
        for network in [name for name in chosen if name in networks]:
            for seed, base in product(trained, ("fresh", "trained")):
                training = TRAININGS["Adam"] if base == "trained" else None
                made = partial(_shaped, network, training, others, count, seed, change)
                attempt(group, case, network, base, seed, made)
    return summary(pd.DataFrame(runs.rows))


def _look(
    module: nn.Module, before: nn.Module | None, images: torch.Tensor, labels: torch.Tensor
) -> study.Row:
    """Inspect a network in each way of looking; without a round before, one is left out."""
    more: dict[str, Any] = {"weights": {}, "batch": {"images": images, "labels": labels}}
    more |= {} if before is None else {"previous": {"previous": before.state_dict()}}
    found = {key: gradleak.inspect(module, **given) for key, given in more.items()}
    flags = {key: int(one.verdict == SHAPED) for key, one in found.items()}
    told: study.Row = {"looks": found["weights"].verdict, "why": " ".join(found["batch"].findings)}
    told["dsnr"] = float(found["batch"].layers["dsnr"].max())
    return {**flags, **told}


def _fresh(network: str, initial: str, seed: int) -> tuple[nn.Module, None]:
    return fresh(network, initial, seed), None


def _trained(
    network: str, how: tuple[str, float, float, int], data: Images, count: int, seed: int
) -> tuple[nn.Module, nn.Module]:
    return rounds(fresh(network, "PyTorch default", seed), how, data, count, seed)


def _shaped(
    network: str,
    how: tuple[str, float, float, int] | None,
    data: Images,
    count: int,
    seed: int,
    change: Callable[..., None],
) -> tuple[nn.Module, nn.Module]:
    base = fresh(network, "PyTorch default", seed)
    if how is not None:
        base, _ = rounds(base, how, data, count, seed)
    module = copy.deepcopy(base)
    with torch.no_grad():
        change(module, seed)
    return module, base


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Rates by group and case, and for each group as a whole."""
    rows = []
    for group, one in found.groupby("group", sort=False):
        for case, part in [*one.groupby("case", sort=False), ("all", one)]:
            row: study.Row = {"group": group, "case": case, "n": len(part)}
            for look in LOOKS:
                flags = pd.to_numeric(part[look], errors="coerce").dropna()
                if flags.empty:
                    row |= dict.fromkeys((look, f"{look}_low", f"{look}_high"), np.nan)
                    continue
                low, high = wilson(float(flags.mean()), len(flags))
                ends = low if flags.any() else 0.0, 1.0 if flags.all() else high
                row |= {look: flags.mean(), f"{look}_low": ends[0], f"{look}_high": ends[1]}
            dsnr = pd.to_numeric(part["dsnr"])
            rows.append(row | {"dsnr": dsnr.median(), "dsnr_largest": dsnr.max()})
    return pd.DataFrame(rows)


def _embedded(split: str) -> Images:
    photos = embedded.build("photos10", split)
    return Images(*photos.take(range(len(photos))))


if __name__ == "__main__":
    (place,) = arguments(__doc__, "folder")
    assert place is not None
    table = compare(_embedded("test"), _embedded("train"), place, AMOUNTS)
    write_csv(place / "rates.csv", table)
