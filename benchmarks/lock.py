"""Cost of a lock in training: steps of one network with it and without, in turns."""

import time
from dataclasses import replace

import numpy as np
import torch

from benchmarks.runner import Facts, measure, row
from gradleak.client.capture import pick_device
from gradleak.models import resnet
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import draw_key, initial_weights
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock
from gradleak.training.learner import Learner
from gradleak.training.recipe import Recipe

# FedKL: a key of 1,024 values at the first convolution, ReLU; batches of 64.
LOCK = Lock(1024, Activation("relu"))
BATCH = 64
PRECISIONS = ("float32", "auto")
# Steps to skip at the start, which allocate memory.
WARM = 3


def networks(kind: str, width: int) -> dict[str, Chain]:
    """DLG's LeNet for MNIST, or a residual network for CIFAR-10: without a lock and with one.

    Both have a norm where the lock is; LeNet has it only for the lock, so ``bare`` is without.
    LeNet is as FedKL trains it, with `width` filters and ReLU.
    """
    out, relu = dict[str, Chain](), Activation("relu")
    shape = (1 if kind == "lenet" else 3, 32, 32)
    specs: tuple[ConvSpec | LinearSpec, ...]
    if kind == "lenet":
        first, *others = (ConvSpec(width, (5, 5), (s, s), (2, 2), True, relu) for s in (2, 2, 1))
        out["bare"] = Chain("lenet_bare", shape, (first, *others, LinearSpec(10)))
        specs = (replace(first, norm="batch"), *others, LinearSpec(10))
    else:
        specs = resnet.specs(kind, width, 10)
    out["plain"] = Chain(kind, shape, specs)
    out["locked"] = Chain(f"{kind}_kl", shape, with_lock(specs, ["conv1"], LOCK))
    return out


def seconds(learning: dict[str, Learner], steps: int, batch: int) -> dict[str, np.ndarray]:
    """Seconds of each step, `steps` of each network on one batch, in turns."""
    first, names = learning["plain"], list(learning)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn((batch, *first.chain.input), generator=generator)
    inputs = images.to(first.device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), generator=generator).to(first.device)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(WARM + steps):
        # Rotate the order, which matters by 1 % on a small network.
        names = names[1:] + names[:1]
        for name in names:
            started, learner = time.perf_counter(), learning[name]
            learner._step(inputs, labels, learner.recipe.rate)
            if first.device.type == "cuda":
                torch.cuda.synchronize(first.device)
            spent[name].append(time.perf_counter() - started)
    return {name: np.array(values[WARM:]) for name, values in spent.items()}


def lock_rows(
    *, device: str, threads: int, steps: int, kind: str = "resnet20", width: int = 16
) -> list[Facts]:
    """Rows: seconds of a training step with the lock and without, medians of steps in turns."""
    job = {"device": device, "steps": steps, "kind": kind, "width": width}
    out = []
    for precision in PRECISIONS:
        found = measure("lock:timed", threads=threads, precision=precision, **job)
        # For a network without its own norm.
        beside = found.get("norm and lock")
        more = f", norm and lock against neither {_percent(beside)}" if beside else ""
        note = (
            f"against the same network without; median of {steps} steps of each in turns, "
            f"batch {BATCH}, {found['arithmetic']}, {found['device']}, {threads} threads; key "
            f"of {LOCK.key} values at the first convolution; a step with the lock takes "
            f"{_percent(found['quotient'])}{more}"
        )
        what = f"training step {kind} with a lock, {precision}"
        out.append(row(what, found["locked"], found["plain"], note))
    return out


def _percent(quotient: float) -> str:
    return f"{100 * (quotient - 1):+.1f} %"


def timed(device: str, precision: str, steps: int, kind: str, width: int) -> Facts:
    """Medians in this process."""
    recipe, learning = Recipe(1, batch=BATCH, rate=0.01, precision=precision), {}
    for name, chain in networks(kind, width).items():
        weights = initial_weights(chain, 0) | draw_key(chain, 0, 0)
        learning[name] = Learner(chain, weights, recipe, 0, pick_device(device))
        learning[name].module.train()
    spent = seconds(learning, steps, BATCH)
    found: Facts = {name: float(np.median(values)) for name, values in spent.items()}
    for what, other in (("quotient", "plain"), ("norm and lock", "bare")):
        if other in spent:
            found[what] = float(np.median(spent["locked"] / spent[other]))
    plain = learning["plain"]
    return {**found, "arithmetic": plain.kind, "device": plain.device.type}
