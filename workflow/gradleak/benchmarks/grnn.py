"""Speed of GRNN against the loop that one writes first: one image, a graph of a graph."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gradleak.attacks.base import AttackerView
from gradleak.attacks.grnn import STREAM, Grnn
from gradleak.benchmarks.inverting import Case, Outcome, make, searched
from gradleak.benchmarks.measure import alternately
from gradleak.benchmarks.speed import OURS_THREADS, row
from gradleak.benchmarks.worker import memory_mib
from gradleak.data import arrays
from gradleak.gradients import DTYPES, pick_device
from gradleak.matching.generators import FIRST, Layout, draw
from gradleak.memory import keep_freed_memory
from gradleak.metrics.image import mse
from gradleak.models import files
from gradleak.models.build import load
from gradleak.section import Precision

ROUNDS = 2
# Images at once, as many as a processor takes.
IMAGES = 16
# Iterations per second of the authors' code on one core: 1,000 for one image in 27 s, on a LeNet of
# 6 and 16 filters.
AUTHORS = 37


class PlainGenerator(nn.Module):
    """One generator of PyTorch's own layers, with the weights of `gradleak.matching.generators`.

    Parameters
    ----------
    layout
        Its sizes.
    drawn
        What `draw` gave.
    """

    def __init__(self, layout: Layout, drawn: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        first = 2 * layout.widths[0]
        self.first = nn.ConvTranspose2d(layout.latent, first, FIRST)
        self.label = nn.Linear(layout.latent, layout.classes)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(*sizes, 3, padding=1, bias=False) for sizes in layout.blocks
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _, outputs in layout.blocks)
        named = dict(self.named_parameters())
        for name, value in drawn.items():
            if name != "latents":
                named[_module_name(name)].data = torch.from_numpy(value)
        self.latents: torch.Tensor
        self.register_buffer("latents", torch.from_numpy(drawn["latents"]))

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (K, C, H, W) in 0..1 and logits (K, classes)."""
        x = functional.glu(self.first(self.latents[:, :, None, None]), 1)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
            x = functional.glu(norm(convolution(x)), 1)
        return torch.sigmoid(x), self.label(self.latents)


def _module_name(name: str) -> str:
    """Name in `PlainGenerator` of a parameter of `draw`."""
    layer, kind = name.split(".")
    if not layer.startswith("block"):
        return name
    number = int(layer.removeprefix("block")) - 1
    if kind == "weight":
        return f"convolutions.{number}.weight"
    return f"norms.{number}.{'weight' if kind == 'scale' else 'bias'}"


def ours(
    case: Case, settings: Mapping[str, Any], precision: Precision = "float32", device: str = "cpu"
) -> Outcome:
    """All images at once, by the attack; `settings` are its ``iterations`` and ``tv``."""
    attack = Grnn(
        **settings, failure_loss=1e9, precision=precision, device=device, chunk=len(case.views)
    )
    return searched(attack, case)


def reference(
    case: Case, settings: Mapping[str, Any], precision: str = "float32", device: str = "cpu"
) -> Outcome:
    """Each image by itself, by automatic derivatives of automatic derivatives."""
    begin = time.perf_counter()
    chosen = pick_device(device)
    found = [
        plain(view, number, settings, DTYPES[precision], chosen)
        for number, view in enumerate(case.views)
    ]
    seconds = time.perf_counter() - begin
    return Outcome(
        seconds,
        np.stack([image.cpu().double().numpy() for image, _ in found]),
        np.array([min(trace) for _, trace in found]),
    )


def plain(
    view: AttackerView,
    seed: int,
    settings: Mapping[str, Any],
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> tuple[torch.Tensor, list[float]]:
    """Best images (K, C, H, W) of one search with the attack's defaults, and its objective.

    The objective is relative to the squared norm of the shared gradient, as that of `Grnn`.
    """
    attack = Grnn(**settings)
    layout = Layout(view.chain.input, view.chain.classes, attack.latent)
    drawn = draw(layout, view.batch, (seed, 0, STREAM))
    generator = PlainGenerator(layout, drawn).to(device, dtype)
    module = load(view.chain, view.weights, dtype).to(device)
    module.train(view.mode == "training")
    names, parameters = zip(*module.named_parameters(), strict=True)
    shared = [torch.from_numpy(view.gradients[name]).to(device, dtype) for name in names]
    square = sum(g.square().sum().item() for g in shared)
    optimiser = torch.optim.RMSprop(
        generator.parameters(), lr=attack.rate, momentum=attack.momentum
    )
    best, trace = torch.zeros(0), [float("inf")]
    for _ in range(attack.iterations):
        pixels, logits = generator()
        x = view.low + (view.high - view.low) * pixels
        loss = functional.cross_entropy(module(x), torch.softmax(logits, 1))
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        distance = torch.stack(
            [(a - b).square().sum() for a, b in zip(found, shared, strict=True)]
        ).sum()
        value = distance + attack.norm * distance.sqrt() + attack.tv * _variation(pixels)
        optimiser.zero_grad()
        value.backward()
        if value.item() / square < min(trace):
            best = x.detach()
        trace.append(value.item() / square)
        optimiser.step()
    return best, trace[1:]


def _variation(x: torch.Tensor) -> torch.Tensor:
    """Twice the mean squared differences of neighbouring pixels."""
    down, across = x[:, :, 1:] - x[:, :, :-1], x[:, :, :, 1:] - x[:, :, :, :-1]
    return 2.0 * (down.square().mean() + across.square().mean())


def grnn_row(
    model: str,
    dataset: str,
    settings: Mapping[str, Any],
    *,
    source: tuple[str, str],
    device: str = "cpu",
    rounds: int = ROUNDS,
    images: int = IMAGES,
) -> dict[str, Any]:
    """Seconds for an iteration of one image, by the attack and by the plain loop.

    `ours_error` and `reference_error` are the mean MSE, of images in [0, 1].

    Parameters
    ----------
    model
        Model file; its first draw is attacked in evaluation mode.
    dataset
        Arrays of the images.
    settings
        ``iterations`` and ``tv``.
    source
        Data set and split of `dataset`.
    device
        auto | cpu | cuda | mps.
    rounds
        Runs of each side, of which the fastest counts.
    images
        How many are attacked.
    """
    shared: dict[str, Any] = {"model": model, "dataset": dataset, "source": source}
    shared["images"] = images
    shared |= {"settings": dict(settings), "device": device}
    jobs = {side: shared | {"side": side} for side in ("ours", "reference")}
    found = alternately("gradleak.benchmarks.grnn", jobs, rounds=rounds, threads=OURS_THREADS)
    mine, theirs = found["ours"], found["reference"]
    note = (
        f"an iteration of one image, {mine['images']} images, {settings['iterations']} iterations, "
        f"float32 on {mine['device']}, one thread each, best of {rounds}; all images at once and "
        "no graph through the network against torch.autograd and torch.optim.RMSprop, one image "
        f"after the other, from the same weights; mean objective {mine['value']:.4g} and "
        f"{theirs['value']:.4g}; {1 / mine['seconds']:.3g} iterations times images per second and "
        f"core of ours, the authors' code makes {AUTHORS} on their LeNet"
    )
    return row(
        f"GRNN {mine['chain']}, an iteration",
        mine["seconds"],
        theirs["seconds"],
        note,
        ours_mib=mine["mib"],
        reference_mib=theirs["mib"],
        ours_error=mine["mse"],
        reference_error=theirs["mse"],
    )


def _measured(job: dict[str, Any]) -> dict[str, Any]:
    """One side in this process; facts for `grnn_row`."""
    before = memory_mib("VmRSS")
    models, data = files.read(job["model"]), arrays.load(job["dataset"], *job["source"])
    chain = models.chains[0]
    inputs = data.images[: job["images"]].astype(np.float32) / 255
    labels = data.labels[: job["images"]]
    case = make(chain, models.of(chain, 0), inputs, labels, (0.0, 1.0))
    settings, run = job["settings"], ours if job["side"] == "ours" else reference
    device = pick_device(job["device"])
    # Kernels are chosen in the first iteration.
    run(case, {**settings, "iterations": 1}, device=device.type)
    found = run(case, settings, device=device.type)
    errors = [mse(*pair) for pair in zip(case.images, found.images, strict=True)]
    return {
        "seconds": found.seconds / (len(case.views) * settings["iterations"]),
        "mib": memory_mib("VmHWM") - before,
        "chain": chain.name,
        "images": len(case.views),
        "device": device.type,
        "mse": float(np.mean(errors)),
        "value": float(np.mean(found.values)),
    }


if __name__ == "__main__":
    keep_freed_memory()  # as every job of the pipeline does; the reference gets the same
    print(json.dumps(_measured(json.loads(sys.argv[1]))))
