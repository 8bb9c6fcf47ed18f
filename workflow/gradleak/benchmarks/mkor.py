"""Speed of MKOR: inversion against the gradient's own time and a loop, memory of large batches."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.mkor import Mkor
from gradleak.benchmarks.measure import answer
from gradleak.benchmarks.speed import row
from gradleak.benchmarks.worker import memory_mib
from gradleak.defences.base import Client
from gradleak.defences.soteria import Soteria
from gradleak.gradients import capture
from gradleak.inversion.features import describers, grid
from gradleak.inversion.pixels import Layout
from gradleak.memory import keep_freed_memory
from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.servers.plan import Plan, plan
from gradleak.servers.secret import Secrets
from gradleak.targets import TargetSet, read

REPEATS = 3
# Labels that the plain loop does; its time is taken in proportion.
LOOPED = 2


def rows(
    model: str, secret: str, targets: str, *, loss: str, images: int, threads: int
) -> list[dict[str, Any]]:
    """Time the gradient of one batch, its inversion as published, and a plain loop for the same.

    Parameters
    ----------
    model, secret, targets
        Files: what an MKOR server sends and keeps, and the batch.
    loss
        Loss of the gradient.
    images
        Images of the batch that are taken.
    threads
        Of all that is timed, since PyTorch and NumPy gain from them alike.
    """
    view, gradient_s = _seen(model, secret, targets, loss=loss, images=images, threads=threads)
    first, found = _inversion(Mkor(), view, gradient_s, "", threads)
    chain, kept = view.chain, view.secret
    assert kept is not None
    paths = plan(chain, kept.settings.get("shifts"))
    # One class's features again from its image, so that the loop has what the inversion had.
    features = kept.values["references"][:2]
    values = describers(chain, view.weights, paths, kept, features)
    _, loop_s = _timed(lambda: loop(chain, paths, values[:LOOPED]), 1)
    loop_s *= len(found.classes) / min(LOOPED, len(values))
    note = (
        f"{_words(view, threads)}; a loop over labels and pixels for eq. (17) to (19) alone, timed "
        f"on {LOOPED} labels and multiplied"
    )
    return [first, row(f"MKOR {chain.name} against a loop", first["ours_s"], loop_s, note)]


def cross_entropy_row(
    model: str, secret: str, targets: str, *, images: int, threads: int
) -> dict[str, Any]:
    """Time ours: all rows of the first layer under cross-entropy. Parameters as of `rows`."""
    view, gradient_s = _seen(
        model, secret, targets, loss="cross_entropy", images=images, threads=threads
    )
    return _inversion(Mkor(rows="all"), view, gradient_s, ", cross-entropy, rows: all", threads)[0]


def _seen(
    model: str, secret: str, targets: str, *, loss: str, images: int, threads: int
) -> tuple[AttackerView, float]:
    """What a malicious server sees of a batch, and the seconds that the gradient took."""
    torch.set_num_threads(threads)
    chosen, models = read(targets), files.read(model)
    chain, weights = models.chains[0], models.of(models.chains[0], 0)
    size = min(images, chosen.size)
    batch, labels = chosen.inputs(0, slice(0, size)), chosen.labels[0, :size]
    shared, seconds = _timed(lambda: _capture(chain, weights, batch, labels, loss, "all"), 1)
    mark, kept = files.fingerprint(weights), Secrets.read(secret).of(chain.name, 0)
    view = AttackerView(
        chain, weights, shared, None, 0.0, 1.0, loss, size, secret=kept, fingerprint=mark
    )
    return view, seconds


def _inversion(
    attack: Mkor, view: AttackerView, gradient_s: float, kind: str, threads: int
) -> tuple[dict[str, Any], Reconstruction]:
    """Row of an inversion beside its gradient, and what it gave."""
    found, seconds = _timed(lambda: attack.run(view, 0), REPEATS)
    share = 100 * seconds / gradient_s
    return row(
        f"MKOR {view.chain.name}{kind} against its gradient",
        seconds,
        gradient_s,
        f"{_words(view, threads)}; inversion takes {share:.2g} % of the gradient's time",
    ), found


def _words(view: AttackerView, threads: int) -> str:
    height, width = view.chain.input[1:]
    return f"{view.batch} images of {height}x{width}, {threads} threads"


def soteria_row(model: str, targets: str, *, threads: int) -> dict[str, Any]:
    """Time Soteria's pruning of one batch against the gradient that it defends."""
    torch.set_num_threads(threads)
    chosen, models = read(targets), files.read(model)
    chain, weights = models.chains[0], models.of(models.chains[0], 0)
    batch, labels = chosen.inputs(0), chosen.labels[0]
    shared, gradient_s = _timed(
        lambda: _capture(chain, weights, batch, labels, "cross_entropy", "all"), REPEATS
    )
    client = Client(chain, weights, batch, labels)
    _, soteria_s = _timed(lambda: Soteria().apply(client, shared, 0), 1)
    return row(
        f"gradient of {chain.name} against Soteria",
        gradient_s,
        soteria_s,
        f"{len(batch)} images, {threads} threads; Soteria takes {soteria_s / gradient_s:.3g} times "
        "the gradient's own time",
    )


def memory_row(model: str, targets: str, *, images: int, threads: int) -> dict[str, Any]:
    """Peak memory of the gradient of a large batch, which passes in parts.

    `reference_mib` is what the activations of the whole batch at once would take, by their number.
    """
    arguments = [model, targets, str(images)]
    found = answer("gradleak.benchmarks.mkor", arguments, threads=threads)
    return {
        "what": f"gradient of {found['images']} images, {found['chain']}",
        "ours_s": found["seconds"],
        "reference_s": math.nan,
        "ratio": math.nan,
        "ours_mib": found["mib"],
        "reference_mib": found["at_once_mib"],
        "note": f"classifier's gradient, in parts, {threads} threads; peak of the whole process "
        f"{found['mib'] / 1024:.2g} GiB",
    }


def _capture(
    chain: Chain,
    weights: dict[str, np.ndarray],
    batch: np.ndarray,
    labels: np.ndarray,
    loss: str,
    kept: str,
) -> dict[str, np.ndarray]:
    cpu = torch.device("cpu")
    return capture(
        chain, weights, batch, labels, precision="float32", device=cpu, loss=loss, kept=kept
    )


def _timed(what: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """What is returned, and the best time of several."""
    best = math.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        out = what()
        best = min(best, time.perf_counter() - begin)
    return out, best


def loop(chain: Chain, paths: Plan, values: np.ndarray) -> np.ndarray:
    """Eq. (17) to (19) as they are written: label after label, pixel after pixel.

    Parameters
    ----------
    chain, paths
        The network and MKOR's paths.
    values
        Describers (B, channels, H, W).
    """
    regions = Layout(paths, grid(chain), chain.input[0]).regions(values)
    height, width = chain.input[1:]
    out = np.empty((len(values), chain.input[0], height, width))
    for label in range(len(values)):
        for y in range(height):
            rows_ = (regions.starts[0] <= y) & (y < regions.starts[0] + regions.side)
            for x in range(width):
                columns = (regions.starts[1] <= x) & (x < regions.starts[1] + regions.side)
                if not rows_.any() or not columns.any():
                    out[label, :, y, x] = np.nan
                    continue
                upper = regions.upper[label][:, rows_][:, :, columns].min(axis=(1, 2))
                lower = regions.lower[label][:, rows_][:, :, columns].max(axis=(1, 2))
                out[label, :, y, x] = 0.5 * (upper + lower)
    return out


def _memory(model: str, targets: str, images: int) -> dict[str, Any]:
    """Capture the classifier's gradient of a batch; facts for `memory_row`."""
    chosen: TargetSet = read(targets)
    models = files.read(model)
    chain, weights = models.chains[0], models.of(models.chains[0], 0)
    size = min(images, chosen.size)
    begin = time.perf_counter()
    capture(
        chain,
        weights,
        chosen.inputs(0, slice(0, size)) if size < chosen.size else chosen.batch(0),
        chosen.labels[0, :size],
        precision="float32",
        device=torch.device("cpu"),
        kept="classifier",
    )
    seconds = time.perf_counter() - begin
    values = sum(layer.shape.filters * layer.shape.positions for layer in chain.convolutions)
    return {
        "chain": chain.name,
        "images": size,
        "seconds": seconds,
        "mib": memory_mib("VmHWM"),
        "at_once_mib": 4 * values * size / 2**20,
    }


if __name__ == "__main__":
    keep_freed_memory()  # as every job of the pipeline does
    print(json.dumps(_memory(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
