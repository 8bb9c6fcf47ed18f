"""Searches that end when their objective no longer falls, against all of their steps.

``python -m benchmarks.patience`` prints the table of docs/speed.md: Inverting Gradients and GRNN on
gradients of embedded photos, with each `PATIENCE` as a share of the steps. On FedKL's LeNet,
Inverting Gradients has the amounts of its scales ``paper`` and ``night``, and fewer; on MKOR's
LeNet-5 those of both scales, on gradients of 100 digits each.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import nn

import gradleak
from benchmarks.runner import arguments
from gradleak.reading.model_checks import Size
from gradleak_audit.attack.samples import from_embedded

PATIENCE = (0.0, 0.02, 0.05, 0.1)


def lenet() -> nn.Module:
    """DLG's LeNet: three convolutions with sigmoids."""
    widths, strides = (3, 12, 12, 12), (2, 2, 1)
    parts: list[nn.Module] = []
    for inputs, outputs, stride in zip(widths, widths[1:], strides, strict=False):
        parts += [nn.Conv2d(inputs, outputs, 5, stride, padding=2), nn.Sigmoid()]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(768, 10))


def fedkl_lenet() -> nn.Module:
    """DLG's LeNet with initial weights and biases uniform in ±0.5, as in FedKL."""
    model = lenet()
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def pools() -> nn.Module:
    """Two convolutions with ReLU and pools."""
    first = nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(2048, 10))


def lenet5() -> nn.Module:
    """MKOR's LeNet-5: sigmoids and average pools."""
    first = nn.Conv2d(1, 6, 5, padding=2), nn.Sigmoid(), nn.AvgPool2d(2)
    second = nn.Conv2d(6, 16, 5), nn.Sigmoid(), nn.AvgPool2d(2)
    dense = nn.Linear(400, 120), nn.Sigmoid(), nn.Linear(120, 84), nn.Sigmoid(), nn.Linear(84, 10)
    return nn.Sequential(*first, *second, nn.Flatten(), *dense)


class Case(NamedTuple):
    """An attack on a network, with pairs of iterations and patience; the first is all steps."""

    network: str
    build: Callable[[], nn.Module]
    attack: str
    settings: Mapping[str, Any]
    ends: Sequence[tuple[int, float]]
    size: Size = (3, 32, 32)
    gradients: int = 6
    batch: int = 1  # images of a gradient


def _each(iterations: int) -> list[tuple[int, float]]:
    return [(iterations, share) for share in PATIENCE]


INVERTING, GRNN = "inverting_gradients", "grnn"
FAST: Mapping[str, Any] = {"rate": 1e-3, "momentum": 0.9}
CASES = [
    Case("LeNet", lenet, INVERTING, {"tv": 1e-4}, _each(4800)),
    Case("LeNet", lenet, GRNN, FAST, _each(1000)),
    Case("ReLU and pools", pools, INVERTING, {"tv": 1e-4}, _each(4800)),
    Case("ReLU and pools", pools, GRNN, FAST, _each(1000)),
    Case(
        "FedKL's LeNet",
        fedkl_lenet,
        INVERTING,
        {"tv": 1e-6},
        [(20_000, 0.0), (20_000, 0.02), (4000, 0.1)],
    ),
    Case(
        "MKOR's LeNet-5, 100 digits",
        lenet5,
        INVERTING,
        {"tv": 1e-2},
        [(24_000, 0.0), (24_000, 0.02), (4800, 0.1)],
        size=(1, 28, 28),
        gradients=2,
        batch=100,
    ),
]


def compare(cases: Sequence[Case] = CASES) -> pd.DataFrame:
    """Mean PSNR in dB and CPU seconds of each case on each gradient, with each of its ends."""
    rows = []
    for case in cases:
        samples = from_embedded(case.size, 10)
        for number in range(case.gradients):
            torch.manual_seed(number)
            part = slice(number * case.batch, (number + 1) * case.batch)
            image = torch.tensor(samples.images[part] / 255.0, dtype=torch.float32)
            model, labels = case.build(), samples.labels[part]
            shared = gradleak.capture(model, image, labels)
            for iterations, share in case.ends:
                ends = {"iterations": iterations, "patience": share}
                how = {"labels": labels, "seed": number, **ends, **case.settings}
                begin = time.process_time()
                found = gradleak.invert(shared, model, case.size, case.attack, **how)
                seconds = time.process_time() - begin
                psnr = float(gradleak.score(image, found)["psnr"].mean())
                told = {"network": case.network, "attack": case.attack, "gradient": number}
                rows.append(told | ends | {"psnr": psnr, "seconds": seconds})
    return pd.DataFrame(rows)


def table(rows: pd.DataFrame) -> str:
    """Mean PSNR, its largest loss on a gradient, and time as a share of that of all steps."""
    heads = ["network", "attack", "iterations", "patience", "PSNR, dB"]
    lines = [[*heads, "most lost on a gradient", "time"]]
    lines.append(["---"] * len(lines[0]))
    for (network, attack), own in rows.groupby(["network", "attack"], sort=False):
        every: pd.DataFrame | None = None
        for (iterations, share), found in own.groupby(["iterations", "patience"], sort=False):
            each = found.set_index("gradient")
            every = each if every is None else every
            lost = (every["psnr"] - each["psnr"]).max()
            part = each["seconds"].sum() / every["seconds"].sum()
            shown = [f"{iterations:,}", f"{share:g}" if share else "all steps"]
            shown += [f"{each['psnr'].mean():.1f}", f"{lost:.1f}", f"{100 * part:.0f} %"]
            lines.append([str(network), f"`{attack}`", *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    arguments(__doc__)
    torch.set_num_threads(1)
    print(table(compare()))
