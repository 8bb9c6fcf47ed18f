"""Speed of MKOR: inversion against the gradient's own time and a loop, memory of large batches."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.runner import Facts, clocked, measure, row
from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.mkor.attack import Mkor
from gradleak.attacks.mkor.features import describers, grid
from gradleak.attacks.mkor.pixels import Layout
from gradleak.client.capture import capture
from gradleak.client.defences.base import Client
from gradleak.client.defences.soteria import Soteria
from gradleak.data.targets import Images, TargetSet, read
from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.servers.plan import Plan, plan
from gradleak.servers.secret import Secrets

REPEATS = 3
# Labels that the plain loop processes; its time is extrapolated.
LOOPED = 2


@dataclass(frozen=True)
class Sent:
    """First seed of a model file, and the first images of a target set's first batch."""

    chain: Chain
    weights: dict[str, np.ndarray]
    targets: TargetSet

    def gradient(self, inputs: Images, **options: Any) -> dict[str, np.ndarray]:
        """Gradient of the batch in float32 on the CPU."""
        options |= {"precision": "float32", "device": torch.device("cpu")}
        return capture(self.chain, self.weights, inputs, self.targets.labels[0], **options)


def sent(model: str, targets: str, images: int | None = None) -> Sent:
    """Read a model file and a target set, of which at most `images` are taken."""
    models, chosen = files.read(model), read(targets)
    first = replace(chosen, images=chosen.images[:1, :images], labels=chosen.labels[:1, :images])
    return Sent(models.chains[0], models.of(models.chains[0], 0), first)


def rows(
    model: str, secret: str, targets: str, *, loss: str, images: int, threads: int
) -> list[Facts]:
    """Rows: an inversion as published beside its gradient, and a plain loop; all use `threads`."""
    view, gradient_s = _seen(model, secret, targets, loss, images, threads)
    first, found = _inversion(Mkor(), view, gradient_s, "", threads)
    chain, kept = view.chain, view.secret
    assert kept is not None
    paths = plan(chain, kept.settings.get("shifts"))
    # Recompute one class's features from its image, as input of the loop.
    features = kept.values["references"][:2]
    values = describers(chain, view.weights, paths, kept, features)
    _, loop_s = clocked(lambda: loop(chain, paths, values[:LOOPED]))
    loop_s *= len(found.classes) / min(LOOPED, len(values))
    note = (
        f"{_words(view, threads)}; a loop over labels and pixels for eq. (17) to (19) alone, timed "
        f"on {LOOPED} labels and multiplied"
    )
    return [first, row(f"MKOR {chain.name} against a loop", first["ours_s"], loop_s, note)]


def cross_entropy_row(model: str, secret: str, targets: str, *, images: int, threads: int) -> Facts:
    """Time ours: all rows of the first layer under cross-entropy. Parameters as of `rows`."""
    seen = _seen(model, secret, targets, "cross_entropy", images, threads)
    return _inversion(Mkor(rows="all"), *seen, ", cross-entropy, rows: all", threads)[0]


def _seen(
    model: str, secret: str, targets: str, loss: str, images: int, threads: int
) -> tuple[AttackerView, float]:
    """View of a malicious server on a batch, and the seconds that the gradient took."""
    torch.set_num_threads(threads)
    given = sent(model, targets, images)
    inputs = given.targets.inputs(0)
    shared, seconds = clocked(lambda: given.gradient(inputs, loss=loss))
    facts: dict[str, Any] = {"secret": Secrets.read(secret).of(given.chain.name, 0)}
    facts |= {"batch": given.targets.size, "fingerprint": files.fingerprint(given.weights)}
    view = AttackerView(given.chain, given.weights, shared, None, 0.0, 1.0, loss, **facts)
    return view, seconds


def _inversion(
    attack: Mkor, view: AttackerView, gradient_s: float, kind: str, threads: int
) -> tuple[Facts, Reconstruction]:
    """Row of an inversion beside its gradient, and the reconstruction."""
    found, seconds = clocked(lambda: attack.run(view, 0), REPEATS)
    what, share = f"MKOR {view.chain.name}{kind} against its gradient", 100 * seconds / gradient_s
    note = f"{_words(view, threads)}; inversion takes {share:.2g} % of the gradient's time"
    return row(what, seconds, gradient_s, note), found


def _words(view: AttackerView, threads: int) -> str:
    height, width = view.chain.input[1:]
    return f"{view.batch} images of {height}x{width}, {threads} threads"


def soteria_row(model: str, targets: str, *, threads: int) -> Facts:
    """Time Soteria's pruning of one batch against the gradient that it defends."""
    torch.set_num_threads(threads)
    given = sent(model, targets)
    inputs, labels = given.targets.inputs(0), given.targets.labels[0]
    shared, gradient_s = clocked(lambda: given.gradient(inputs), REPEATS)
    client = Client(given.chain, given.weights, inputs, labels)
    _, soteria_s = clocked(lambda: Soteria().apply(client, shared, 0))
    note = (
        f"{len(inputs)} images, {threads} threads; Soteria takes {soteria_s / gradient_s:.3g} "
        "times the gradient's own time"
    )
    return row(f"gradient of {given.chain.name} against Soteria", gradient_s, soteria_s, note)


def memory_row(model: str, targets: str, *, images: int, threads: int) -> Facts:
    """Row: peak memory of a large batch's gradient, in parts; activations of all at once."""
    options = {"model": model, "targets": targets, "images": images}
    found = measure("mkor:timed", threads=threads, **options)
    peak = found["peak_mib"]
    return row(
        f"gradient of {found['images']} images, {found['chain']}",
        {"seconds": found["seconds"], "mib": peak},
        {"seconds": math.nan, "mib": found["at_once_mib"]},
        f"classifier's gradient, in parts, {threads} threads; peak of the whole process "
        f"{peak / 1024:.2g} GiB",
    )


def timed(model: str, targets: str, images: int) -> Facts:
    """Capture the classifier's gradient of a batch in this process, which never holds all of it."""
    given = sent(model, targets, images)
    batch = given.targets.batch(0)
    _, seconds = clocked(lambda: given.gradient(batch, kept="classifier"))
    shapes = [layer.shape for layer in given.chain.convolutions]
    values = len(batch) * sum(shape.filters * shape.positions for shape in shapes)
    found = {"chain": given.chain.name, "images": len(batch), "seconds": seconds}
    return {**found, "at_once_mib": 4 * values / 2**20}


def loop(chain: Chain, paths: Plan, values: np.ndarray) -> np.ndarray:
    """Eq. (17) to (19) literally, label by label and pixel by pixel, of describers (B, K, H, W)."""
    regions = Layout(paths, grid(chain), chain.input[0]).regions(values)
    out = np.full((len(values), *chain.input), np.nan)
    for label in range(len(values)):
        for y in range(chain.input[1]):
            rows_ = (regions.starts[0] <= y) & (y < regions.starts[0] + regions.side)
            for x in range(chain.input[2]):
                columns = (regions.starts[1] <= x) & (x < regions.starts[1] + regions.side)
                if rows_.any() and columns.any():
                    upper = regions.upper[label][:, rows_][:, :, columns].min(axis=(1, 2))
                    lower = regions.lower[label][:, rows_][:, :, columns].max(axis=(1, 2))
                    out[label, :, y, x] = 0.5 * (upper + lower)
    return out
