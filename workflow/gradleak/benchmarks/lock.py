"""What a lock costs in training: steps of one network with it and without, one after the other."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gradleak.benchmarks.measure import answer
from gradleak.benchmarks.speed import row
from gradleak.gradients import pick_device
from gradleak.memory import keep_freed_memory
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
# Steps that are left out at the start: the first allocate.
WARM = 3


def networks(kind: str, width: int) -> dict[str, Chain]:
    """DLG's LeNet for MNIST, or a residual network for CIFAR-10: without a lock and with one.

    Both have a norm where the lock is; LeNet has it for the lock's sake, so ``bare`` is without.
    """
    shape: tuple[int, int, int]
    if kind == "lenet":
        specs, shape = _lenet(width, "batch"), (1, 32, 32)
        more = {"bare": Chain(f"{kind}_bare", shape, _lenet(width, "none"))}
    else:
        specs, shape, more = resnet.specs(kind, width, 10), (3, 32, 32), {}
    return more | {
        "plain": Chain(kind, shape, specs),
        "locked": Chain(f"{kind}_kl", shape, with_lock(specs, ["conv1"], LOCK)),
    }


def _lenet(width: int, norm: str) -> tuple[ConvSpec | LinearSpec, ...]:
    """DLG's LeNet of `width` filters as FedKL trains it, with ReLU, and a first norm."""
    relu = Activation("relu")
    first, second, third = (
        ConvSpec(width, (5, 5), (stride, stride), (2, 2), True, relu) for stride in (2, 2, 1)
    )
    return replace(first, norm=norm), second, third, LinearSpec(10)


def learners(chains: dict[str, Chain], precision: str, device: torch.device) -> dict[str, Learner]:
    """Each network with its initial weights, in training mode."""
    recipe, out = Recipe(1, batch=BATCH, rate=0.01, precision=precision), {}
    for name, chain in chains.items():
        weights = initial_weights(chain, 0) | draw_key(chain, 0, 0)
        out[name] = Learner(chain, weights, recipe, 0, device)
        out[name].module.train()
    return out


def seconds(learning: dict[str, Learner], steps: int, batch: int) -> dict[str, np.ndarray]:
    """Seconds of each step, `steps` of each network on one batch, in turns."""
    first = next(iter(learning.values()))
    device = first.device
    generator = torch.Generator().manual_seed(0)
    images = torch.randn((batch, *first.chain.input), generator=generator)
    inputs = images.to(device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), generator=generator).to(device)
    spent: dict[str, list[float]] = {name: [] for name in learning}
    names = list(learning)
    for step in range(WARM + steps):
        # Each starts in turn: who follows whom is worth 1 % on a small network.
        first_up = step % len(names)
        for name in names[first_up:] + names[:first_up]:
            learner = learning[name]
            started = time.perf_counter()
            learner._step(inputs, labels, learner.recipe.rate)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            spent[name].append(time.perf_counter() - started)
    return {name: np.array(values[WARM:]) for name, values in spent.items()}


def lock_rows(
    *, device: str, threads: int, steps: int, kind: str = "resnet20", width: int = 16
) -> list[dict[str, Any]]:
    """Seconds of a training step with the lock and without, in float32 and as trainings run.

    Both are medians over steps that take turns in one process, so that other work on the machine
    meets both alike; the note has the median of the quotients of steps that follow each other.

    Parameters
    ----------
    device
        auto | cpu | cuda | mps.
    threads
        Of the process.
    steps
        Of each network.
    kind, width
        The network: as in `gradleak.models.resnet.specs`, or ``lenet`` and its filters.
    """
    out = []
    for precision in PRECISIONS:
        job = {"device": device, "precision": precision, "steps": steps, "kind": kind}
        job["width"] = width
        found = answer("gradleak.benchmarks.lock", [json.dumps(job)], threads=threads)
        out.append(
            row(
                f"training step {kind} with a lock, {precision}",
                found["locked"],
                found["plain"],
                f"against the same network without; median of {steps} steps of each in turns, "
                f"batch {BATCH}, {found['arithmetic']}, {found['device']}, {threads} threads; key "
                f"of {LOCK.key} values at the first convolution; a step with the lock takes "
                f"{_percent(found['quotient'])}{_beside(found)}",
            )
        )
    return out


def _percent(quotient: float) -> str:
    return f"{100 * (quotient - 1):+.1f} %"


def _beside(found: dict[str, Any]) -> str:
    """What norm and lock together take, where the network has no norm of its own."""
    if "norm and lock" not in found:
        return ""
    return f", norm and lock against neither {_percent(found['norm and lock'])}"


def _measured(arguments: Sequence[str]) -> dict[str, Any]:
    """Medians in this process."""
    job = json.loads(arguments[0])
    device = pick_device(job["device"])
    learning = learners(networks(job["kind"], job["width"]), job["precision"], device)
    spent = seconds(learning, job["steps"], BATCH)
    bare = spent.pop("bare", None)
    beside = {} if bare is None else {"norm and lock": float(np.median(spent["locked"] / bare))}
    return beside | {
        **{name: float(np.median(values)) for name, values in spent.items()},
        "quotient": float(np.median(spent["locked"] / spent["plain"])),
        "arithmetic": learning["plain"].kind,
        "device": device.type,
    }


if __name__ == "__main__":
    keep_freed_memory()  # as every job of the pipeline does
    print(json.dumps(_measured(sys.argv[1:])))
