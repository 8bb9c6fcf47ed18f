"""R-GAP on photographs of ImageNet's size: what it reads, how long it takes, how much it holds.

Each network is attacked in a process of its own, whose peak of memory is its alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn

import gradleak
from benchmarks.photo_bound import limits
from benchmarks.runner import Facts, measure
from gradleak.operators.shape import ConvShape
from gradleak.plotting import style

# Filters of each layer: two of 4x4 with stride 2, then of 3x3. Layers have a tenth to a third more
# outputs than unknowns; the last ones have twice as many.
NETWORKS: Mapping[str, tuple[int, ...]] = {
    "four layers": (16, 72, 80, 160),
    "six layers": (15, 68, 75, 82, 90, 180),
}
SLOPE = 0.2  # of LeakyReLU
# The difference is shown this many times as strong.
TIMES = 100.0


class Result(NamedTuple):
    """One network's row, and the photo (C, H, W) before and after."""

    row: Facts
    original: np.ndarray
    found: np.ndarray


def chain(filters: Sequence[int], side: int) -> nn.Sequential:
    """Convolutions with LeakyReLU, and a score for the logistic loss."""
    layers: list[nn.Module] = []
    channels = 3
    for number, count in enumerate(filters):
        kernel, stride = (4, 2) if number < 2 else (3, 1)
        layers += [nn.Conv2d(channels, count, kernel, stride, 1), nn.LeakyReLU(SLOPE)]
        channels = count
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * (side // 4) ** 2, 1))


def attack(name: str, photo: str, answer: str) -> Facts:
    """Attack the float32 gradient of the photo (3, S, S) in a file, in [0, 1], with R-GAP.

    The reconstruction is written to the file `answer`.
    """
    torch.manual_seed(0)
    images = torch.from_numpy(np.load(photo)[None]).float()
    size = (3, *images.shape[2:])
    model = chain(NETWORKS[name], size[1])
    gradient = gradleak.capture(model, images, [1], loss="logistic")
    begin = time.process_time()
    found = gradleak.invert(gradient, model, size, "rgap", labels=[1], loss="logistic")
    seconds = time.process_time() - begin
    np.save(answer, found.images[0].clamp(0.0, 1.0).numpy())
    score = gradleak.score(images, found.images).iloc[0]
    able = limits(model, images, SLOPE)
    return {
        "network": name,
        "side": size[1],
        "unknowns": max(unknowns(model, size[1])),
        "psnr": float(score["psnr"]),
        "ssim": float(score["ssim"]),
        "bound": able.bound,
        "expected": able.expected,
        "conditions": "; ".join(f"{value:.3g}" for value in able.conditions),
        "operations": sum(layer.operations for layer in found.layers),
        "distance": found.distance,
        "seconds": seconds,
        "stop": found.stop,
    }


def shapes(model: nn.Module, side: int) -> list[ConvShape]:
    """Sizes of each convolution, of square kernels, for images of a side."""
    found = []
    for layer in model.children():
        if isinstance(layer, nn.Conv2d):
            pairs = (layer.kernel_size, layer.stride, layer.padding)
            kernel, stride, padding = ((int(one[0]), int(one[1])) for one in pairs)
            sizes = layer.in_channels, layer.out_channels, kernel, stride, padding, (side, side)
            found.append(ConvShape(*sizes))
            side = found[-1].output[0]
    return found


def unknowns(model: nn.Module, side: int) -> list[int]:
    """Unknowns of each convolution's input."""
    return [shape.unknowns for shape in shapes(model, side)]


def compare(photos: Sequence[np.ndarray]) -> tuple[pd.DataFrame, Figure]:
    """Attack a photo through each network: the table, and a figure of the pictures."""
    results = []
    with TemporaryDirectory() as folder:
        for name, photo in zip(NETWORKS, photos, strict=True):
            given, answer = f"{folder}/photo.npy", f"{folder}/answer.npy"
            np.save(given, photo)
            row = measure("photo:attack", name=name, photo=given, answer=answer)
            row["gib"] = row.pop("peak_mib") / 1024.0
            del row["mib"]
            results.append(Result(row, photo, np.load(answer)))
    columns = [*results[0].row]
    return pd.DataFrame([one.row for one in results], columns=columns), draw(results)


def draw(results: Sequence[Result]) -> Figure:
    """Photo, reconstruction and difference, a line for each network."""
    with style.styled():
        figure = style.new(style.PAGE, 2.6 * len(results))
        axes = figure.subplots(len(results), 3, squeeze=False)
        for line, (row, original, found) in zip(axes, results, strict=True):
            sure = f"{row['bound']:.0f}".replace("-", "\N{MINUS SIGN}")
            apart = np.clip(0.5 + TIMES * (found - original), 0.0, 1.0)
            titles = (
                f"photo, {row['side']} x {row['side']}",
                f"R-GAP, {row['network']}: PSNR {row['psnr']:.1f} dB\n"
                f"{row['seconds']:.0f} s, {row['gib']:.1f} GiB (by W: {row['expected']:.0f} dB "
                f"expected, {sure} sure)",
                f"difference, times {TIMES:g}",
            )
            for axis, pixels, title in zip(line, (original, found, apart), titles, strict=True):
                axis.imshow(pixels.transpose(1, 2, 0), interpolation="nearest")
                axis.set_title(title, fontsize=6.5)
                axis.set_axis_off()
        figure.subplots_adjust(0.01, 0.01, 0.99, 0.93, 0.03, 0.16)
    return figure
