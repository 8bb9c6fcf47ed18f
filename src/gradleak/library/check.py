"""`gradleak.check`: how what was shared differs from what it is taken for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from gradleak.client.local_training import Recipe
from gradleak.library.capture import capture
from gradleak.library.network import OwnNetwork, read_network
from gradleak.library.shared import open_shared
from gradleak.library.tensors import Gradient, label_batch
from gradleak.library.update import Update
from gradleak.models.losses import BINARY

# Batches of noise on which the client's work is repeated.
STAND_INS = 4
# Sizes within this factor of those of noise are no finding: images differ from noise, too.
ALIKE = 1.6
# Sizes of all parameters within this factor tell weights, changes and gradients apart.
FITS = 3.0
TURNED = "The sign is turned"


@dataclass(frozen=True)
class Check:
    """Findings of what does not fit; none if ``findings`` is empty."""

    findings: tuple[str, ...]  # a sentence each
    ratio: float  # size of what was shared, relative to the same of noise
    parameters: pd.DataFrame = field(repr=False)  # norms, and those of noise, by parameter

    def __str__(self) -> str:
        return "\n".join(self.findings) or "Nothing was found that does not fit."


def check(
    shared: Gradient | Update,
    model: nn.Module,
    input_shape: Sequence[int],
    *,
    labels: Any = None,
    batch: int | None = None,
    loss: str = "cross_entropy",
    mode: str = "training",
    low: float = 0.0,
    high: float = 1.0,
    rate: float | None = None,
) -> Check:
    """Repeat a client's work on noise, and say how what it shared differs in kind.

    Attacks on a payload that is not what it is taken for give back nothing. Sizes, signs, zeros and
    buffers tell the usual mistakes apart: a sum for a mean, a difference of weights for a gradient,
    a turned sign, frozen parameters, another mode.

    Parameters
    ----------
    shared, model, input_shape, labels, batch, loss, mode, low, high
        As in `gradleak.invert`.
    rate
        The client's learning rate, if a gradient might be a difference of weights. An update's own
        is known.

    Returns
    -------
    Check
        Findings, a sentence each, and norms by parameter.

    Raises
    ------
    GradleakError
        If what was shared is not of this network at all, as `gradleak.invert`.
    """
    network = read_network(model, input_shape, loss=loss, mode=mode)
    opened = open_shared(network, shared)
    update = shared if isinstance(shared, Update) else None
    truth = None if labels is None else label_batch(labels, network, batch)
    size = update.count if update else batch or (1 if truth is None else len(truth))
    noise = _noise(network, truth, size, (low, high), update.recipe if update else None)
    norms = _norms(opened.given, noise)
    both = norms[(norms["norm"] > 0) & (norms["noise"] > 0)]
    shares = np.log(both["norm"].to_numpy() / both["noise"].to_numpy())
    ratio = float(np.exp(shares.mean())) if len(shares) else np.nan
    rate = update.recipe.rate if update else rate
    other = [] if update is None else _payload(update, norms)
    findings = [*_zeros(norms), *other]
    if not other:
        signs = _signs(opened.given, network, size)
        if update is not None and signs and signs[0].startswith(TURNED):
            signs = [f"{signs[0].partition(';')[0]}; before and after may be exchanged."]
        steps = 1 if update is None else update.steps
        findings += [*signs, *_sizes(ratio, size, rate, steps, update is not None)]
    if update is not None:
        findings += _buffers(update, network)
    return Check(tuple(findings), ratio, norms)


def _noise(
    network: OwnNetwork,
    labels: np.ndarray | None,
    size: int,
    bounds: tuple[float, float],
    recipe: Recipe | None,
) -> list[Mapping[str, np.ndarray]]:
    """Repeat what the client did, on noise."""
    out = []
    for number in range(STAND_INS):
        chance = np.random.default_rng(number)
        images = chance.uniform(*bounds, (size, *network.size))
        truth = labels
        if truth is None:
            margin = network.loss in BINARY
            truth = (
                chance.choice([-1, 1], size)
                if margin
                else chance.integers(0, network.classes, size)
            )
        own: dict[str, Any] = {"loss": network.loss, "mode": network.mode, "seed": number}
        found = capture(network.module, images, truth, recipe=recipe, **own)
        if isinstance(found, Update):
            out.append(open_shared(network, found).given)
        else:
            out.append({name: value.cpu().numpy() for name, value in found.items()})
    return out


def _norms(
    given: Mapping[str, np.ndarray], noise: Sequence[Mapping[str, np.ndarray]]
) -> pd.DataFrame:
    rows = [
        {
            "parameter": name,
            "norm": float(np.linalg.norm(value)),
            "noise": float(np.median([np.linalg.norm(one[name]) for one in noise])),
        }
        for name, value in given.items()
    ]
    return pd.DataFrame(rows, columns=["parameter", "norm", "noise"])


def _zeros(norms: pd.DataFrame) -> list[str]:
    """Parameters that did not move although noise would have moved them."""
    still = norms[(norms["norm"] == 0) & (norms["noise"] > 0)]["parameter"].tolist()
    if not still:
        return []
    names = f"{', '.join(still[:3])}{', …' if len(still) > 3 else ''}"
    return [f"{len(still)} of {len(norms)} parameters are zero ({names}): frozen, or not shared."]


def _payload(update: Update, norms: pd.DataFrame) -> list[str]:
    """Gradients, or changes of weights, in the place of weights after the training."""
    noise = dict(zip(norms["parameter"], norms["noise"], strict=True))
    scale = update.recipe.rate * update.recipe.weight(update.count)
    # Norms of what came back, relative to the changes of weights on noise.
    pairs = [
        (float(update.after[name].norm()), value) for name, value in noise.items() if value > 0
    ]
    sizes = np.array([after / value for after, value in pairs if after > 0])
    if not len(sizes):
        return []
    spread = {
        "changes of weights; give before plus what came back": np.log(sizes),
        "gradients; give before minus the rate times them": np.log(sizes * scale),
    }
    # Weights have other sizes in each layer than their changes.
    near = {why: float(np.abs(logs).max()) for why, logs in spread.items()}
    best = min(near, key=near.__getitem__)
    own = np.log(
        [
            float(update.before[n].norm()) / max(float(update.after[n].norm()), 1e-30)
            for n in noise
            if float(update.before[n].norm()) > 0
        ]
    )
    if near[best] > np.log(FITS) or np.abs(own).max(initial=0.0) < np.log(FITS):
        return []
    return [f"What came back has the sizes of {best}."]


def _signs(given: Mapping[str, np.ndarray], network: OwnNetwork, size: int) -> list[str]:
    """Under cross-entropy the last bias falls for the classes of the batch alone."""
    last = [v for v in given.values() if v.shape == (network.classes,)]
    if network.loss != "cross_entropy" or not last or 2 * size >= network.classes:
        return []
    below, above = int((last[-1] < 0).sum()), int((last[-1] > 0).sum())
    if below <= size:
        return []
    if above <= size:
        return [
            f"The sign is turned: {below} of {network.classes} entries of the last bias are below "
            f"0, where a gradient of {size} images has {size} at most; give minus what was shared."
        ]
    return [
        f"{below} entries of the last bias are below 0 and {above} above, where a gradient of "
        f"{size} images has {size} at most below: there are more images, noise was added, or the "
        "loss is another."
    ]


def _sizes(ratio: float, count: int, rate: float | None, steps: int, is_update: bool) -> list[str]:
    """Factors that explain a size which is not that of noise."""
    if not np.isfinite(ratio) or 1.0 / ALIKE <= ratio <= ALIKE:
        return []
    causes: dict[str, float] = {}
    if count > 1:
        causes[f"a sum over {count} images instead of their mean"] = float(count)
        causes[f"a mean that was divided by {count} again"] = 1.0 / count
    if steps > 1:
        causes[f"one of {steps} steps alone"] = 1.0 / steps
    if rate is not None and not is_update:
        causes[f"a difference of weights at the rate {rate:g} instead of a gradient"] = rate
    if rate is not None and is_update:
        causes[f"gradients in place of weights after the rate {rate:g}"] = 1.0 / rate
    near = {why: abs(np.log(ratio / factor)) for why, factor in causes.items()}
    best = min(near, key=near.__getitem__, default=None)
    words = f"It is {ratio:.2g} times as large as that of noise"
    if best is not None and near[best] <= np.log(ALIKE):
        return [f"{words}: {best} would explain it."]
    return [
        f"{words}; a trained network, clipping, another learning rate or another loss would "
        "explain it."
    ]


def _buffers(update: Update, network: OwnNetwork) -> list[str]:
    """Running statistics move in training mode alone."""
    kept = {n: v for n, v in update.buffers_after.items() if n in update.buffers_before}
    moved = any(
        not np.array_equal(v.cpu(), update.buffers_before[n].cpu()) for n, v in kept.items()
    )
    if moved and network.mode == "evaluation":
        return ["Buffers changed, so the client ran in training mode; set mode='training'."]
    if kept and not moved and network.mode == "training":
        return ["Buffers did not change: the client ran in evaluation mode, or sent the old ones."]
    return []
