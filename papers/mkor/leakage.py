"""Information on one gradient in the sum of a batch's (MKOR eq. 1 and 2), formula and measured."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
import torch
from torch.func import functional_call, grad, vmap

from gradleak.client.capture import mean_loss
from gradleak.data.targets import TargetSet
from gradleak.data.targets import read as read_targets
from gradleak.errors import ConfigError
from gradleak.models.build import load
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile, read
from gradleak.runtime.tidy import Given

COLUMNS = [
    "images", "formula", "asymptote", "ratio", "rest", "printed_rest", "layer", "measured",
    "entropies",
]  # fmt: skip
SIZES = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
LAYERS = ("conv1.weight", "fc1.weight")
MOST_PARAMETERS = 400  # of a layer, evenly spread: more change its mean by less than sampling does
# From 4 other gradients on, sums of a finite pool hardly repeat; beyond 100 images the difference
# of two entropies is smaller than its own error.
ENTROPIES = (5, 100)
AT_ONCE = 50
CHUNK = 1000
LOSS = "cross_entropy"


def gaussian(images: np.ndarray | float) -> np.ndarray:
    """½·log(K / (K − 1)) nats for K = `images`, K > 1 (eq. 2)."""
    k = np.asarray(images, dtype=float)
    return np.asarray(0.5 * np.log(k / (k - 1.0)))


def asymptote(images: np.ndarray | float) -> np.ndarray:
    """1 / (2K), the limit of `gaussian` for large batches."""
    return 1.0 / (2.0 * np.asarray(images, dtype=float))


def rest(images: np.ndarray | float) -> np.ndarray:
    """`gaussian` less the first term of its series: −1 / (4(K − 1)²) and what follows."""
    return gaussian(images) - printed_first(images)


def printed_first(images: np.ndarray | float) -> np.ndarray:
    """1 / (2(K − 1)), the first term of the series in the paper's derivation of eq. (2)."""
    return np.asarray(0.5 / (np.asarray(images, dtype=float) - 1.0))


def of_samples(
    chain: Chain, weights: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """Gradient of each image, by layer of `LAYERS`: {layer: (n, parameters)}.

    `images` (n, C, H, W) are network inputs, with `labels` (n,). Raises `ConfigError` if the
    network lacks one of the layers.
    """
    module = load(chain, weights, torch.float32)
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    for layer in LAYERS:
        if layer not in parameters:
            raise ConfigError(f"{chain.name} has no {layer}; name a network that has one.")

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mean_loss(LOSS, functional_call(module, values, (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    found: dict[str, list[np.ndarray]] = {layer: [] for layer in LAYERS}
    inputs, classes = torch.from_numpy(images.astype(np.float32)), torch.from_numpy(labels)
    for x, y in zip(inputs.split(AT_ONCE), classes.split(AT_ONCE), strict=True):
        gradients = each(parameters, x, y)
        for layer, parts in found.items():
            flat = gradients[layer].flatten(1).numpy()
            chosen = np.linspace(0, flat.shape[1] - 1, min(flat.shape[1], MOST_PARAMETERS))
            parts.append(flat[:, chosen.round().astype(int)].copy())
    return {layer: np.concatenate(parts) for layer, parts in found.items()}


def measured(gradients: np.ndarray, images: int, draws: int) -> tuple[float, float]:
    """Leakage about a parameter of one gradient in a sum of `images`, in nats.

    `gradients` are (n, parameters), of one image each; `draws` batches of K = `images` are drawn
    with replacement. Returns −½·log(1 − ρ²) with ρ the correlation of g₁ and the sum, ρ² its mean
    over parameters, and H(Σ over K) − H(Σ over K − 1) by Vasicek's estimator, NaN outside
    `ENTROPIES`. So drawn, ρ² is 1/K whatever the distribution: the first number only tests the
    arithmetic of eq. (2) and the sampling. The second needs no normal distribution.
    """
    spread = gradients.std(axis=0)
    alive = spread > 1e-6 * spread.max(initial=0.0)
    unit = (gradients[:, alive] - gradients[:, alive].mean(axis=0)) / spread[alive]
    ones, others = map(np.concatenate, zip(*_drawn(unit, images, draws), strict=True))
    sums = others + ones
    rho2 = float(((_standard(ones) * _standard(sums)).mean(axis=0) ** 2).mean())
    # Subtract the bias of ρ², its expectation for independent samples.
    rho2 = min(max(1.0 - (1.0 - rho2) * (draws - 1) / (draws - 2), 0.0), 1.0 - 1e-12)
    inside = ENTROPIES[0] <= images <= ENTROPIES[1]
    entropies = float((entropy(sums) - entropy(others)).mean()) if inside else np.nan
    return float(-0.5 * np.log1p(-rho2)), entropies


def _drawn(unit: np.ndarray, images: int, draws: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield one gradient and the sum of K − 1 others for each draw, several draws at a time."""
    rng, pool = np.random.default_rng(0), len(unit)
    for first in range(0, draws, CHUNK):
        count = min(CHUNK, draws - first)
        one = unit[rng.integers(0, pool, count)]
        often = rng.multinomial(images - 1, np.full(pool, 1.0 / pool), size=count)
        yield one, often.astype(unit.dtype) @ unit


def _standard(values: np.ndarray) -> np.ndarray:
    centred = values - values.mean(axis=0)
    return np.asarray(centred / centred.std(axis=0))


def entropy(samples: np.ndarray) -> np.ndarray:
    """Differential entropy of each column of `samples` (R, parameters) in nats (Vasicek 1976)."""
    count, ordered = len(samples), np.sort(samples, axis=0)
    reach, places = max(1, round(np.sqrt(count) / 2)), np.arange(count)
    high, low = np.minimum(places + reach, count - 1), np.maximum(places - reach, 0)
    gaps = np.maximum(ordered[high] - ordered[low], 1e-12)
    return np.asarray(np.log(gaps * count / (2 * reach)).mean(axis=0))


def table(models: ModelFile, targets: TargetSet, model: str, *, draws: int) -> pd.DataFrame:
    """Rows `COLUMNS`: formula, asymptote and measured leakage for each batch size and layer.

    `ratio` is of formula and asymptote, `rest` the formula less the first term of its series, and
    `printed_rest` the second term as the paper prints it.

    `models` is a file of honest weights with the network `model`. `draws` batches of each size are
    drawn from the images of `targets`, each image counted once. Raises `ConfigError` if the file
    lacks the network, or the network a layer.
    """
    chain = next((chain for chain in models.chains if chain.name == model), None)
    if chain is None:
        raise ConfigError(f"The model file has no {model}; put it into its group again.")
    _, first = np.unique(targets.indices.ravel(), return_index=True)
    shape = targets.images.shape[2:]
    images = (targets.images.reshape(-1, *shape)[first] / 255.0 + targets.offset) / targets.std
    gradients = of_samples(chain, models.of(chain, 0), images, targets.labels.ravel()[first])
    rows = []
    for size in SIZES:
        exact, limit = float(gaussian(size)), float(asymptote(size))
        # The paper prints ½ (1 / (2(K − 1)))² for the second term.
        second = float(rest(size)), 0.5 * float(printed_first(size)) ** 2
        head = size, exact, limit, exact / limit, *second
        rows += [(*head, name, *measured(v, size, draws)) for name, v in gradients.items()]
    return pd.DataFrame(rows, columns=COLUMNS)


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Table from files: ``models`` and ``targets``; `words` has ``model`` and ``draws``."""
    (path,) = files["models"]
    return table(read(path), read_targets(files["targets"]), words["model"], draws=words["draws"])
