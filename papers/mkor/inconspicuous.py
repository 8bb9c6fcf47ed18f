"""Malicious parameters as a client sees them: counts, moments, a two-sample test, gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats

from gradleak.client.capture import capture
from gradleak.data.targets import TargetSet
from gradleak.models.chain import Chain, ConvLayer, Layer
from gradleak.models.files import ModelFile
from gradleak.runtime.progress import progress

COLUMNS = ["server", "model", "layer", "metric", "value", "default"]
# A client looking for zeros counts weights below this share of the initialization limit.
ZERO = 1e-3
# Sample size of a layer in the two-sample test, for both sides.
SAMPLE = 100_000


def table(
    honest: ModelFile,
    servers: Sequence[str],
    sent: Iterable[ModelFile],
    targets: TargetSet,
    samples: int,
    loss: str,
) -> list[dict[str, Any]]:
    """Tidy rows about the weights that a server sends, and the gradients they lead to.

    Parameters
    ----------
    honest
        The model as initialised; the first seed is used.
    servers, sent
        Ids of servers in config.yaml, and the model that each sends.
    targets
        Images, of which the first `samples` are taken one by one.
    samples
        Number of gradients of single images that a client computes.
    loss
        Loss of the gradients.

    Returns
    -------
    list of dict
        Records with the keys `COLUMNS`. `value` is of the weights sent, `default` of another
        initialization: what a client would expect. For each layer, for ``convolutions`` and
        for ``all``:

        ``parameters``, ``modified``, ``modified_share``
            Weights and biases, and how many of them differ from the honest ones.
        ``modified_of_all``
            For ``convolutions`` only: modified ones over the parameters of all layers.
        ``zeros_share``
            Share of the weights that are 0, or below 0.1 % of the layer's initialization limit.
        ``mean``, ``deviation``, ``largest``
            Of the weights over the layer's initialization limit 1/sqrt(fan_in); the largest in
            absolute value.
        ``kurtosis``
            Excess kurtosis: −1.2 for uniform weights.
        ``ks``, ``ks_p``
            Kolmogorov-Smirnov distance of the weights from another initialization, and its
            p-value: a test that a client can run.
        ``bias_ks_p``, ``bias_largest``
            The same test and the largest absolute value of the biases; a test of distributions
            hardly detects a single outlier, which the largest value shows.

        And for ``all``: ``norm_spread``, the largest over the median norm of single images'
        gradients, and ``zero_gradient_share``, the share of images whose gradient of the first
        layer is below a thousandth of the largest.
    """
    rows: list[dict[str, Any]] = []
    with progress(1 + len(servers), "models") as bar:
        with bar.doing():
            expected = {
                chain.name: _gradients(chain, honest.of(chain, 0), targets, samples, loss)
                for chain in progress(honest.chains, "networks")
            }
        for server, models in zip(servers, sent, strict=True):
            with bar.doing():
                for chain in progress(models.chains, "networks"):
                    own = models.of(chain, 0)
                    found = _gradients(chain, own, targets, samples, loss)
                    own_rows = list(_of_weights(chain, own, honest.of(chain, 0)))
                    for metric, default in expected[chain.name].items():
                        own_rows.append(_row("all", metric, found[metric], default))
                    rows += [{"server": server, "model": chain.name, **row} for row in own_rows]
    return rows


def _row(layer: str, metric: str, value: float, default: float) -> dict[str, Any]:
    return {"layer": layer, "metric": metric, "value": value, "default": default}


def _of_weights(
    chain: Chain, own: Mapping[str, np.ndarray], honest: Mapping[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """Rows about the weights of each layer, of the convolutions and of all."""
    for name, layers in progress(_groups(chain).items(), "groups of layers"):
        for metric, value, default in _weights(layers, own, honest):
            yield _row(name, metric, value, default)
            if (name, metric) == ("convolutions", "modified"):
                yield _row(name, "modified_of_all", value / chain.parameters, 0.0)


def _groups(chain: Chain) -> dict[str, list[Layer]]:
    """Layers one by one, the convolutions together, and all."""
    single: dict[str, list[Layer]] = {layer.name: [layer] for layer in chain.layers}
    together: dict[str, list[Layer]] = {
        "convolutions": list(chain.convolutions),
        "all": list(chain.layers),
    }
    return {**single, **{name: layers for name, layers in together.items() if layers}}


def _limit(layer: Layer) -> float:
    """Limit of a layer's initialization range, 1/sqrt(fan_in)."""
    if isinstance(layer, ConvLayer):
        return float(1.0 / np.sqrt(layer.shape.channels * np.prod(layer.shape.kernel)))
    return float(1.0 / np.sqrt(layer.inputs))


def _weights(
    layers: list[Layer], own: Mapping[str, np.ndarray], honest: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, float, float]]:
    """(metric, value, default) of some layers together."""
    names = [f"{layer.name}.{kind}" for layer in layers for kind in ("weight", "bias")]
    names = [name for name in names if name in own]
    total = sum(own[name].size for name in names)
    changed = sum(int(np.count_nonzero(own[name] != honest[name])) for name in names)
    yield "parameters", float(total), float(total)
    yield "modified", float(changed), 0.0
    yield "modified_share", changed / total, 0.0
    # Divided by its limit, every layer's weights are uniform in [−1, 1].
    scaled = np.concatenate(
        [own[f"{layer.name}.weight"].ravel() / np.float32(_limit(layer)) for layer in layers]
    )
    draw = np.random.default_rng(0)
    expected = draw.uniform(-1.0, 1.0, min(scaled.size, SAMPLE)).astype(np.float32)
    yield from zip(
        ("zeros_share", "mean", "deviation", "largest", "kurtosis"),
        _moments(scaled),
        _moments(expected),
        strict=True,
    )
    biases = [
        own[f"{layer.name}.bias"] / np.float32(_limit(layer)) for layer in layers if layer.bias
    ]
    if biases:
        joined = np.concatenate(biases)
        drawn = draw.uniform(-1.0, 1.0, joined.size)
        uniform = stats.uniform(-1.0, 2.0).cdf
        yield (
            "bias_ks_p",
            float(stats.kstest(joined, uniform, method="asymp").pvalue),
            float(stats.kstest(drawn, uniform, method="asymp").pvalue),
        )
        yield "bias_largest", float(np.abs(joined).max()), float(np.abs(drawn).max())
    some = scaled if scaled.size <= SAMPLE else draw.choice(scaled, SAMPLE, replace=False)
    test = stats.ks_2samp(some, expected, method="asymp")
    again = stats.ks_2samp(draw.uniform(-1.0, 1.0, some.size), expected, method="asymp")
    yield "ks", float(test.statistic), float(again.statistic)
    yield "ks_p", float(test.pvalue), float(again.pvalue)


def _moments(values: np.ndarray) -> tuple[float, ...]:
    """Share of zeros, mean, deviation, largest size and excess kurtosis of scaled weights."""
    mean = float(values.mean(dtype=np.float64))
    centred = values - np.float32(mean)
    square = centred * centred
    variance = float(np.mean(square, dtype=np.float64))
    fourth = float(np.mean(square * square, dtype=np.float64))
    size = np.abs(values)
    zeros = float(np.mean(size < ZERO))
    kurtosis = fourth / variance**2 - 3.0 if variance else float("nan")
    return zeros, mean, float(np.sqrt(variance)), float(size.max()), kurtosis


def _gradients(
    chain: Chain, weights: Mapping[str, np.ndarray], targets: TargetSet, samples: int, loss: str
) -> dict[str, float]:
    """Spread of the gradients of single images, as a client can sample them."""
    norms, first = [], []
    layer = chain.layers[0].name
    for k in progress(range(min(samples, targets.size)), "gradients"):
        shared = capture(
            chain,
            weights,
            targets.inputs(0, slice(k, k + 1)),
            targets.labels[0, k : k + 1],
            precision="float32",
            device=torch.device("cpu"),
            loss=loss,
        )
        norms.append(float(np.sqrt(sum(float(np.vdot(v, v)) for v in shared.values()))))
        first.append(float(np.linalg.norm(shared[f"{layer}.weight"])))
    largest = max(first)
    none = sum(value <= 1e-3 * largest for value in first) / len(first)
    return {
        "norm_spread": max(norms) / float(np.median(norms)),
        "zero_gradient_share": none,
    }
