"""Searches that end when their objective no longer falls, against all of their steps.

``python -m benchmarks.patience`` prints the table of docs/speed.md: Inverting Gradients and GRNN on
gradients of embedded photos, with each `PATIENCE` as a share of the steps.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import nn

import gradleak
from gradleak_audit.attack.samples import from_embedded

SIZE = (3, 32, 32)
IMAGES = 6
PATIENCE = (0.0, 0.02, 0.05, 0.1)
ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "inverting_gradients": {"tv": 1e-4, "iterations": 4800},
    "grnn": {"iterations": 1000, "rate": 1e-3, "momentum": 0.9},
}


def lenet() -> nn.Module:
    """DLG's LeNet: three convolutions with sigmoids."""
    widths, strides = (3, 12, 12, 12), (2, 2, 1)
    parts: list[nn.Module] = []
    for inputs, outputs, stride in zip(widths, widths[1:], strides, strict=False):
        parts += [nn.Conv2d(inputs, outputs, 5, stride, padding=2), nn.Sigmoid()]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(768, 10))


def pools() -> nn.Module:
    """Two convolutions with ReLU and pools."""
    first = nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(2048, 10))


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {"LeNet": lenet, "ReLU and pools": pools}


def compare(patience: Sequence[float] = PATIENCE, images: int = IMAGES) -> pd.DataFrame:
    """PSNR in dB and CPU seconds of each attack on each image, network and patience."""
    samples, rows = from_embedded(SIZE, 10), []
    pixels = torch.tensor(samples.images[:images] / 255.0, dtype=torch.float32)
    for name, build in NETWORKS.items():
        for number in range(images):
            torch.manual_seed(number)
            model, image, label = (
                build(),
                pixels[number : number + 1],
                samples.labels[number : number + 1],
            )
            shared = gradleak.capture(model, image, label)
            for attack, settings in ATTACKS.items():
                for share in patience:
                    how = {"labels": label, "seed": number, "patience": share, **settings}
                    begin = time.process_time()
                    found = gradleak.invert(shared, model, SIZE, attack, **how)
                    seconds = time.process_time() - begin
                    psnr = float(gradleak.score(image, found)["psnr"].item())
                    told = {"network": name, "attack": attack, "image": number, "patience": share}
                    rows.append(told | {"psnr": psnr, "seconds": seconds})
    return pd.DataFrame(rows)


def table(rows: pd.DataFrame) -> str:
    """Mean PSNR, its largest loss on an image, and time as a share of that of all steps."""
    lines = [["network", "attack", "patience", "PSNR, dB", "most lost on an image", "time"]]
    lines.append(["---"] * len(lines[0]))
    for (network, attack), own in rows.groupby(["network", "attack"], sort=False):
        each = own.pivot(index="image", columns="patience")
        for share in each["psnr"]:
            lost = (each["psnr"][0.0] - each["psnr"][share]).max()
            part = each["seconds"][share].sum() / each["seconds"][0.0].sum()
            psnr = each["psnr"][share].mean()
            shown = [f"{share:g}" if share else "all steps", f"{psnr:.1f}", f"{lost:.1f}"]
            lines.append([str(network), f"`{attack}`", *shown, f"{100 * part:.0f} %"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(compare()))
