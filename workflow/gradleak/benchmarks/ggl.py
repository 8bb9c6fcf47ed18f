"""Speed of GGL's population in batches against one candidate after the other."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from gradleak.attacks.base import AttackerView
from gradleak.benchmarks import inverting
from gradleak.benchmarks.measure import alternately
from gradleak.benchmarks.speed import OURS_THREADS, row
from gradleak.benchmarks.worker import memory_mib
from gradleak.data import arrays
from gradleak.gradients import pick_device
from gradleak.matching.branches import BranchGradients
from gradleak.matching.members import Members
from gradleak.matching.population import Population
from gradleak.memory import keep_freed_memory
from gradleak.models import files
from gradleak.models.build import load

ROUNDS = 2
# Distances of a population of candidates (P, 1, C, H, W), (P,).
Distances = Callable[[torch.Tensor], torch.Tensor]


def batched(view: AttackerView, size: int, device: torch.device) -> Distances:
    """As the attack evaluates `size` candidates: together."""
    return Population(_member(view, device), size).distances


def single(view: AttackerView, device: torch.device) -> Distances:
    """The same code with one candidate at a time."""
    population = Population(_member(view, device), 1)

    def distances(images: torch.Tensor) -> torch.Tensor:
        return torch.cat([population.distances(image[None]) for image in images])

    return distances


def reference(view: AttackerView, device: torch.device) -> Distances:
    """One candidate at a time by automatic derivatives, as one writes it first."""
    module = load(view.chain, view.weights, torch.float32).to(device)
    names = [name for name, _ in module.named_parameters()]
    parameters = list(module.parameters())
    shared = [torch.from_numpy(view.gradients[name]).to(device) for name in names]
    norm = torch.stack([target.square().sum() for target in shared]).sum()
    label = torch.tensor(view.labels, device=device)

    def distance(image: torch.Tensor) -> torch.Tensor:
        found = torch.autograd.grad(functional.cross_entropy(module(image), label), parameters)
        pairs = zip(found, shared, strict=True)
        return torch.stack([(a - b).square().sum() for a, b in pairs]).sum() / norm

    return lambda images: torch.stack([distance(image) for image in images])


def _member(view: AttackerView, device: torch.device) -> Members:
    """One search for the image of a view, in evaluation mode."""
    network = BranchGradients(view.chain, view.weights, view.loss, mode="evaluation", device=device)
    squares = [np.sum(value.astype(np.float64) ** 2) for value in view.gradients.values()]
    scale = 1.0 / np.sqrt(sum(squares))
    scaled = {name: scale * value for name, value in view.gradients.items()}
    start = network.tensor(np.zeros((1, 1, *view.chain.input)))
    return Members(
        network,
        network.targets([scaled]),
        network.tensor(np.array([scale])),
        torch.tensor([view.labels], device=device),
        start,
        network.tensor(np.zeros((1, 1, view.chain.classes))),
        torch.zeros((1, 2), dtype=torch.long, device=device),
    )


def population_row(
    model: str,
    dataset: str,
    *,
    population: int,
    source: tuple[str, str],
    scale: tuple[float, float],
    device: str = "cpu",
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Seconds for the gradient distance of a candidate, in batches and one at a time.

    `ours_error` and `reference_error` are the mean distance; the note has the largest relative
    difference of a candidate's two.

    Parameters
    ----------
    model, dataset, source, scale, device, rounds
        As of `gradleak.benchmarks.inverting.inverting_row`; the candidates are images of the data
        set, and the gradient is that of another.
    population
        Candidates.
    """
    shared: dict[str, Any] = {"model": model, "dataset": dataset, "source": source, "scale": scale}
    shared |= {"population": population, "device": device}
    jobs = {side: shared | {"side": side} for side in ("ours", "single", "reference")}
    found = alternately("gradleak.benchmarks.ggl", jobs, rounds=rounds, threads=OURS_THREADS)
    mine, alone, theirs = found["ours"], found["single"], found["reference"]
    ours, plain = np.array(mine["distances"]), np.array(theirs["distances"])
    difference = np.max(np.abs(ours - plain) / plain)
    note = (
        f"a candidate of {population}, float32 on {mine['device']}, one thread each, best of "
        f"{rounds}; together against torch.autograd.grad one after the other; one after the other "
        f"by the same code {alone['seconds']:.2g} s; initial weights with running statistics, "
        f"evaluation mode; largest relative difference {float(difference):.1e}"
    )
    return row(
        f"GGL {mine['chain']}, a candidate",
        mine["seconds"],
        theirs["seconds"],
        note,
        ours_mib=mine["mib"],
        reference_mib=theirs["mib"],
        ours_error=float(ours.mean()),
        reference_error=float(plain.mean()),
    )


def _measured(job: dict[str, Any]) -> dict[str, Any]:
    """One side in this process; facts for `population_row`."""
    before = memory_mib("VmRSS")
    models, data = files.read(job["model"]), arrays.load(job["dataset"], *job["source"])
    chain, (offset, deviation) = models.chains[0], job["scale"]
    count = job["population"]
    pixels = data.images[: max(inverting.PASSES * inverting.SEEN, count + 1)].astype(np.float32)
    inputs = ((pixels / 255 + offset) / deviation).astype(np.float32)
    weights = inverting.settled(chain, models.of(chain, 0), inputs)
    limits = (offset / deviation, (1.0 + offset) / deviation)
    view = inverting.make(chain, weights, inputs[:1], data.labels[:1], limits).views[0]
    device = pick_device(job["device"])
    sides: dict[str, Callable[[], Distances]] = {
        "ours": lambda: batched(view, count, device),
        "single": lambda: single(view, device),
        "reference": lambda: reference(view, device),
    }
    distances = sides[job["side"]]()
    candidates = torch.from_numpy(inputs[1 : count + 1, None]).to(device)
    # Kernels are chosen in the first pass.
    distances(candidates)
    begin = time.perf_counter()
    found = distances(candidates).cpu()
    return {
        "seconds": (time.perf_counter() - begin) / len(candidates),
        "mib": memory_mib("VmHWM") - before,
        "chain": chain.name,
        "device": device.type,
        "distances": [float(value) for value in found],
    }


if __name__ == "__main__":
    keep_freed_memory()  # as every job of the pipeline does; the reference gets the same
    print(json.dumps(_measured(json.loads(sys.argv[1]))))
