"""Speed of Inverting Gradients on residual networks against the loop that one writes first."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gradleak.attacks.base import AttackerView
from gradleak.attacks.inverting import FACTOR, MILESTONES, InvertingGradients
from gradleak.attacks.search import Search
from gradleak.benchmarks.measure import alternately
from gradleak.benchmarks.speed import OURS_THREADS, row
from gradleak.benchmarks.worker import memory_mib
from gradleak.data import arrays
from gradleak.errors import GradleakError
from gradleak.gradients import DTYPES, capture, pick_device
from gradleak.matching.branches import BranchGradients
from gradleak.memory import keep_freed_memory
from gradleak.metrics.image import mse
from gradleak.models import files
from gradleak.models.build import load, with_statistics
from gradleak.models.chain import Chain
from gradleak.section import Precision

ROUNDS = 2
# Images at once on an accelerator, which would take all.
MOST = 64
# Forward passes behind the running statistics, and images in each.
PASSES, SEEN = 4, 64


@dataclass(frozen=True)
class Case:
    """Gradients of single images in evaluation mode, the images, and one start for each.

    Attributes
    ----------
    views
        One for each image, with label and start.
    images
        (N, 1, C, H, W), as the network is fed with them.
    """

    views: list[AttackerView]
    images: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """What one way gave.

    Attributes
    ----------
    seconds
        For all images and iterations.
    images
        (N, 1, C, H, W), each the best on its way.
    values
        Its objective (N,): cosine distance and total variation.
    """

    seconds: float
    images: np.ndarray
    values: np.ndarray


def settled(
    chain: Chain, weights: Mapping[str, np.ndarray], images: np.ndarray
) -> dict[str, np.ndarray]:
    """Weights with running statistics of these images (N, C, H, W), as a trained network has."""
    module = load(chain, with_statistics(chain, weights), torch.float32).train()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = None  # the mean over all passes
    with torch.no_grad():
        for part in np.array_split(images, max(1, len(images) // SEEN)):
            module(torch.from_numpy(part))
    state = module.state_dict().items()
    return {name: v.numpy() for name, v in state if not name.endswith("batches_tracked")}


def make(
    chain: Chain,
    weights: Mapping[str, np.ndarray],
    images: np.ndarray,
    labels: np.ndarray,
    limits: tuple[float, float],
) -> Case:
    """Case from images (N, C, H, W) in `limits`, with starts from N(0, 1), all float32."""
    views = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        shared = capture(
            chain,
            dict(weights),
            image[None],
            np.array([label]),
            precision="float32",
            device=torch.device("cpu"),
            mode="evaluation",
        )
        draw = np.random.default_rng((number, 11))
        start = draw.standard_normal((1, 1, *chain.input)).astype(np.float32)
        granted = (int(label),)
        views.append(
            AttackerView(chain, weights, shared, granted, *limits, starts=start, mode="evaluation")
        )
    return Case(views, images[:, None])


def ours(
    case: Case, settings: Mapping[str, Any], precision: Precision = "float32", device: str = "cpu"
) -> Outcome:
    """All images at once, by the attack; `settings` are its ``iterations``, ``rate`` and ``tv``."""
    attack = InvertingGradients(
        **settings,
        start="reconstruction",
        failure_loss=10.0,
        precision=precision,
        device=device,
        chunk=len(case.views),
    )
    return searched(attack, case)


def searched(attack: Search, case: Case) -> Outcome:
    """A search for all images of a case, timed."""
    begin = time.perf_counter()
    found = attack.run_many(case.views, range(len(case.views)))
    seconds = time.perf_counter() - begin
    images, values = [], []
    for answer in found:
        if isinstance(answer, GradleakError):
            raise answer
        images.append(answer.images)
        values.append(answer.loss)
    return Outcome(seconds, np.stack(images), np.array(values))


def reference(
    case: Case, settings: Mapping[str, Any], precision: str = "float32", device: str = "cpu"
) -> Outcome:
    """Each image by itself, by automatic derivatives."""
    begin = time.perf_counter()
    chosen = pick_device(device)
    found = [_plain(view, settings, DTYPES[precision], chosen) for view in case.views]
    seconds = time.perf_counter() - begin
    return Outcome(
        seconds,
        np.stack([image.cpu().double().numpy() for image, _ in found]),
        np.array([value for _, value in found]),
    )


def _plain(
    view: AttackerView, settings: Mapping[str, Any], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, float]:
    """Best image (1, C, H, W) of one search, and its objective."""
    assert view.starts is not None
    module = load(view.chain, view.weights, dtype).to(device)
    names = [name for name, _ in module.named_parameters()]
    parameters = list(module.parameters())
    shared = [torch.from_numpy(view.gradients[name]).to(device, dtype) for name in names]
    label = torch.tensor(view.labels, device=device)
    x = torch.from_numpy(view.starts[0]).to(device, dtype).clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=settings["rate"])
    milestones = [int(share * settings["iterations"]) for share in MILESTONES]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, FACTOR)
    best, least = x.detach().clone(), float("inf")
    for _ in range(settings["iterations"]):
        loss = functional.cross_entropy(module(x), label)
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        value = _cosine(found, shared) + settings["tv"] * _variation(x)
        x.grad = torch.autograd.grad(value, x)[0].sign()
        if value.item() < least:
            best, least = x.detach().clone(), value.item()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(view.low, view.high)
    return best, least


def _cosine(found: tuple[torch.Tensor, ...], shared: list[torch.Tensor]) -> torch.Tensor:
    """Cosine distance over all parameters."""
    inner = ours_ = theirs = torch.zeros((), device=found[0].device)
    for a, b in zip(found, shared, strict=True):
        inner = inner + (a * b).sum()
        ours_ = ours_ + a.square().sum()
        theirs = theirs + b.square().sum()
    return 1.0 - inner / (ours_.sqrt() * theirs.sqrt())


def _variation(x: torch.Tensor) -> torch.Tensor:
    """Mean absolute differences of neighbouring pixels."""
    down, across = x[:, :, 1:] - x[:, :, :-1], x[:, :, :, 1:] - x[:, :, :, :-1]
    return down.abs().mean() + across.abs().mean()


def inverting_row(
    model: str,
    dataset: str,
    settings: Mapping[str, Any],
    *,
    source: tuple[str, str],
    scale: tuple[float, float],
    device: str = "cpu",
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Seconds for an iteration of one image, by the attack and by the plain loop.

    `ours_error` and `reference_error` are the mean MSE, of images in [0, 1].

    Parameters
    ----------
    model
        Model file; its first draw, with running statistics of some images, is attacked in
        evaluation mode.
    dataset
        Arrays of the images, of which as many are attacked as the attack computes at once.
    settings
        ``iterations``, ``rate`` and ``tv``.
    source
        Data set and split of `dataset`.
    scale
        Offset and deviation: networks are fed with (pixels + offset) / deviation.
    device
        auto | cpu | cuda | mps.
    rounds
        Runs of each side, of which the fastest counts.
    """
    shared: dict[str, Any] = {"model": model, "dataset": dataset, "source": source, "scale": scale}
    shared |= {"settings": dict(settings), "device": device}
    jobs = {side: shared | {"side": side} for side in ("ours", "reference")}
    module = "gradleak.benchmarks.inverting"
    found = alternately(module, jobs, rounds=rounds, threads=OURS_THREADS)
    mine, theirs = found["ours"], found["reference"]
    note = (
        f"an iteration of one image, {mine['images']} images, {settings['iterations']} iterations, "
        f"float32 on {mine['device']}, one thread each, best of {rounds}; all images at once and "
        "no graph against torch.autograd and torch.optim.Adam, one image after the other; initial "
        "weights with running statistics, evaluation mode; mean objective "
        f"{mine['value']:.4g} and {theirs['value']:.4g}"
    )
    return row(
        f"Inverting Gradients {mine['chain']}, an iteration",
        mine["seconds"],
        theirs["seconds"],
        note,
        ours_mib=mine["mib"],
        reference_mib=theirs["mib"],
        ours_error=mine["mse"],
        reference_error=theirs["mse"],
    )


def _measured(job: dict[str, Any]) -> dict[str, Any]:
    """One side in this process; facts for `inverting_row`."""
    before = memory_mib("VmRSS")
    models, data = files.read(job["model"]), arrays.load(job["dataset"], *job["source"])
    chain, (offset, deviation) = models.chains[0], job["scale"]
    pixels = data.images[: PASSES * SEEN].astype(np.float32) / 255
    inputs = ((pixels + offset) / deviation).astype(np.float32)
    weights = settled(chain, models.of(chain, 0), inputs)
    device = pick_device(job["device"])
    network = BranchGradients(chain, weights, "cross_entropy", mode="evaluation", device=device)
    count = min(MOST, network.at_once(1))
    limits = (offset / deviation, (1.0 + offset) / deviation)
    case = make(chain, weights, inputs[:count], data.labels[:count], limits)
    settings, run = job["settings"], ours if job["side"] == "ours" else reference
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
        "mse": float(np.mean(errors)) * deviation**2,
        "value": float(np.mean(found.values)),
    }


if __name__ == "__main__":
    keep_freed_memory()  # as every job of the pipeline does; the reference gets the same
    print(json.dumps(_measured(json.loads(sys.argv[1]))))
