"""Malicious parameters as a client sees them: counts, moments, a two-sample test, gradients."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats

from gradleak.client.capture import capture
from gradleak.data.targets import TargetSet
from gradleak.library import batch_tests, weight_tests
from gradleak.models.chain import Chain, ConvLayer, Layer
from gradleak.models.files import ModelFile
from gradleak.runtime.progress import progress

COLUMNS = ["server", "model", "layer", "metric", "value", "default"]
MOMENTS = ("zeros_share", "mean", "deviation", "largest", "kurtosis")
# A client looking for zeros counts weights below this share of the initialization limit.
ZERO = 1e-3
# Sample size of a layer in the two-sample test, for both sides.
SAMPLE = 100_000

Arrays = Mapping[str, np.ndarray]
Row = tuple[str, str, float, float]  # layer, metric, value, default


def table(
    honest: ModelFile,
    servers: Sequence[str],
    sent: Iterable[ModelFile],
    targets: TargetSet,
    samples: int,
    loss: str,
) -> list[dict[str, Any]]:
    """Tidy rows, with keys `COLUMNS`, about the weights that servers send, and their gradients.

    `honest` is the model as initialised, of which the first seed is used; `sent` has the model that
    each of `servers` (ids in config.yaml) sends. Gradients under `loss` are of the first `samples`
    images of `targets`, one by one. `value` is of the weights sent, `default` of another
    initialization: what a client would expect. For each layer, ``convolutions`` and ``all``:

    - ``parameters``, ``modified``, ``modified_share``: weights and biases, and how many of them
      differ from the honest ones; for ``convolutions`` also ``modified_of_all``, these over the
      parameters of all layers;
    - ``zeros_share``: share of the weights that are 0, or below 0.1 % of the layer's limit
      1/sqrt(fan_in) of the initialization;
    - ``mean``, ``deviation``, ``largest``: of the weights over that limit; the largest in absolute
      value; ``kurtosis``: excess kurtosis, −1.2 for uniform weights;
    - ``ks``, ``ks_p``: Kolmogorov-Smirnov distance of the weights from another initialization, and
      its p-value: a test that a client can run;
    - ``bias_ks_p``, ``bias_largest``: the same test and the largest absolute value of the biases; a
      test of distributions hardly detects a single outlier, which the largest value shows.

    - ``looks_shaped``: 1 if the tests of `gradleak.inspect` find the weights shaped, else 0; here
      ``default`` is of the honest weights themselves.

    And for ``all``: ``norm_spread``, the largest over the median norm of single images' gradients,
    and ``zero_gradient_share``, the share of images whose gradient of the first layer is below a
    thousandth of the largest. From four images on also ``dsnr``, the largest D-SNR of a layer, and
    ``looks_shaped_batch``, as ``looks_shaped`` with the tests of these gradients.
    """
    rows = []
    with progress(1 + len(servers), "models") as bar:
        with bar.doing():
            expected = {
                chain.name: _seen(chain, honest.of(chain, 0), targets, samples, loss)
                for chain in progress(honest.chains, "networks")
            }
        for server, models in zip(servers, sent, strict=True):
            with bar.doing():
                for chain in progress(models.chains, "networks"):
                    own, usual = models.of(chain, 0), expected[chain.name]
                    found = _seen(chain, own, targets, samples, loss)
                    own_rows = [*_of_weights(chain, own, honest.of(chain, 0))]
                    own_rows += [(*key, value, usual[key]) for key, value in found.items()]
                    rows += [(server, chain.name, *row) for row in own_rows]
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def _of_weights(chain: Chain, own: Arrays, honest: Arrays) -> Iterator[Row]:
    """Rows about the weights of each layer, of the convolutions and of all."""
    groups: dict[str, list[Layer]] = {layer.name: [layer] for layer in chain.layers}
    groups |= {"convolutions": list(chain.convolutions)} if chain.convolutions else {}
    groups["all"] = list(chain.layers)
    for name, layers in progress(groups.items(), "groups of layers"):
        for metric, value, default in _weights(layers, own, honest):
            yield name, metric, value, default
            if (name, metric) == ("convolutions", "modified"):
                yield name, "modified_of_all", value / chain.parameters, 0.0


def _limit(layer: Layer) -> np.float32:
    if isinstance(layer, ConvLayer):
        return np.float32(1.0 / np.sqrt(layer.shape.channels * np.prod(layer.shape.kernel)))
    return np.float32(1.0 / np.sqrt(layer.inputs))


def _weights(
    layers: list[Layer], own: Arrays, honest: Arrays
) -> Iterator[tuple[str, float, float]]:
    names = [f"{layer.name}.{kind}" for layer in layers for kind in ("weight", "bias")]
    names = [name for name in names if name in own]
    total = sum(own[name].size for name in names)
    changed = sum(int(np.count_nonzero(own[name] != honest[name])) for name in names)
    yield "parameters", float(total), float(total)
    yield "modified", float(changed), 0.0
    yield "modified_share", changed / total, 0.0
    # Divided by its limit, every layer's weights are uniform in [−1, 1].
    scaled = np.concatenate([own[f"{e.name}.weight"].ravel() / _limit(e) for e in layers])
    draw = np.random.default_rng(0)
    expected = draw.uniform(-1.0, 1.0, min(scaled.size, SAMPLE)).astype(np.float32)
    yield from zip(MOMENTS, _moments(scaled), _moments(expected), strict=True)
    if biases := [own[f"{e.name}.bias"] / _limit(e) for e in layers if e.bias]:
        joined = np.concatenate(biases)
        both, uniform = (joined, draw.uniform(-1.0, 1.0, joined.size)), stats.uniform(-1.0, 2.0).cdf
        p, q = (float(stats.kstest(each, uniform, method="asymp").pvalue) for each in both)
        yield "bias_ks_p", p, q
        largest, usual = (float(np.abs(each).max()) for each in both)
        yield "bias_largest", largest, usual
    some = scaled if scaled.size <= SAMPLE else draw.choice(scaled, SAMPLE, replace=False)
    test = stats.ks_2samp(some, expected, method="asymp")
    again = stats.ks_2samp(draw.uniform(-1.0, 1.0, some.size), expected, method="asymp")
    yield "ks", float(test.statistic), float(again.statistic)
    yield "ks_p", float(test.pvalue), float(again.pvalue)


def _moments(values: np.ndarray) -> tuple[float, ...]:
    mean = float(values.mean(dtype=np.float64))
    centred = values - np.float32(mean)
    square = centred * centred
    variance = float(np.mean(square, dtype=np.float64))
    fourth = float(np.mean(square * square, dtype=np.float64))
    size = np.abs(values)
    kurtosis = fourth / variance**2 - 3.0 if variance else float("nan")
    return float(np.mean(size < ZERO)), mean, float(np.sqrt(variance)), float(size.max()), kurtosis


def _seen(
    chain: Chain, weights: Arrays, targets: TargetSet, samples: int, loss: str
) -> dict[tuple[str, str], float]:
    """Measures that need no honest weights to compare with, by layer and metric."""
    shaped = {}
    for layer in chain.layers:
        weight, bias = weights[f"{layer.name}.weight"], weights.get(f"{layer.name}.bias")
        found = weight_tests.statistics(weight_tests.layer_of(layer.name, weight, bias))
        shaped[layer.name] = any(weight_tests.reasons(found, len(weight)))
    some = any(shaped.values())
    out = {(name, "looks_shaped"): float(value) for name, value in (*shaped.items(), ("all", some))}
    spread, seen = _gradients(chain, weights, targets, samples, loss)
    out |= {("all", name): value for name, value in spread.items()}
    if min(samples, targets.size) >= batch_tests.LEAST:
        some |= any(any(batch_tests.reasons(found)) for found in seen.values())
        out["all", "dsnr"] = max(found["dsnr"] for found in seen.values())
        out["all", "looks_shaped_batch"] = float(some)
    return out


def _gradients(
    chain: Chain, weights: Arrays, targets: TargetSet, samples: int, loss: str
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Spread of the gradients of single images, as a client can sample them, and tests of them."""
    norms, first, high = [], [], []
    options: dict[str, Any] = {"precision": "float32", "device": torch.device("cpu"), "loss": loss}

    def each() -> Iterator[Arrays]:
        for k in progress(range(min(samples, targets.size)), "gradients"):
            one = slice(k, k + 1)
            given = targets.inputs(0, one), targets.labels[0, one]
            shared = capture(chain, weights, *given, **options)
            norms.append(float(np.sqrt(sum(float(np.vdot(v, v)) for v in shared.values()))))
            first.append(float(np.linalg.norm(shared[f"{chain.layers[0].name}.weight"])))
            # The gradient of cross-entropy for the class's bias is its probability minus one.
            own = shared.get(f"{chain.layers[-1].name}.bias")
            high.append(own is not None and own[given[1][0]] < -0.5)
            yield shared

    squares = batch_tests.square_rows(each())
    seen = batch_tests.of_squares(squares, np.array(high))
    none = sum(value <= 1e-3 * max(first) for value in first) / len(first)
    spread = max(norms) / float(np.median(norms))
    return {"norm_spread": spread, "zero_gradient_share": none}, seen
