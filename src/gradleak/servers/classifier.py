"""MKOR's parameters of the classifier: naive (section 3.2.2) and inconspicuous (eq. 10 to 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradleak.errors import ConfigError
from gradleak.models.chain import Chain, LinearLayer

if TYPE_CHECKING:
    from gradleak.servers.mkor import MkorServer


def write_classifier(
    server: MkorServer,
    chain: Chain,
    weights: dict[str, np.ndarray],
    references: np.ndarray,
    generator: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Write the design into `weights`; return ``nodes`` and ``path`` of `Secret`.

    `references` (3, n) are features from the convolutions.
    """
    layers = [layer for layer in chain.layers if isinstance(layer, LinearLayer)]
    check_width(chain, layers, server.classifier, server.paths)
    out: dict[str, np.ndarray] = {}
    if server.classifier == "naive":
        out = _naive(layers, weights)
    elif server.classifier == "paired":
        out = _paired(server, layers, weights, references, generator)
    if server.output_bias:
        name = f"{layers[-1].name}.bias"
        if name not in weights:
            raise ConfigError(
                f"output_bias: {server.output_bias:g}, but {chain.name} ends without a bias; "
                "set it to 0."
            )
        weights[name][0] += server.output_bias
    return out


def _paired(
    server: MkorServer,
    layers: list[LinearLayer],
    weights: dict[str, np.ndarray],
    references: np.ndarray,
    generator: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Write eq. (10) to (13), from the output backwards.

    The paper picks nodes at random. Here each class gets those with already large weights on
    its path, which changes no weight and leaves more signal.
    """
    opened = []
    classes = layers[-1].outputs
    after, path = np.arange(classes), np.ones(classes)
    for layer in reversed(layers[1:]):
        weight = weights[f"{layer.name}.weight"]
        times = server.paths if layer is layers[-1] else 1
        times *= 2 if layer is layers[1] and pairs(layers) else 1
        nodes = _assigned(np.abs(weight[after]), times)
        ends = np.repeat(after, times)
        kept = np.abs(weight[ends, nodes])
        limit = server.sigma / np.sqrt(layer.inputs)
        weight[:, nodes] = limit * generator.standard_normal((layer.outputs, len(nodes)))
        weight[ends, nodes] = kept
        if layer.bias:
            bias = weights[f"{layer.name}.bias"]
            bias[after] = np.abs(bias[after])
        path = np.repeat(path, times) * kept
        opened.append(after)
        after = nodes
    if pairs(layers):
        # Eq. (10), (11): each second row of a pair is α < 0 times the first.
        alpha = -generator.uniform(0.8, 1.25, len(after) // 2)
        for kind in ("weight", "bias")[: 1 + layers[0].bias]:
            rows = weights[f"{layers[0].name}.{kind}"]
            rows[after[1::2]] = (alpha * rows[after[::2]].T).T
    _keep_open(layers, weights, references, opened[::-1])
    return {"nodes": after.reshape(classes, -1), "path": path.reshape(classes, -1)}


def _keep_open(
    layers: list[LinearLayer],
    weights: dict[str, np.ndarray],
    references: np.ndarray,
    nodes: list[np.ndarray],
) -> None:
    """Raise biases of decoupled nodes that the references would close.

    Eq. (13) takes |b|, but the nodes also receive the outputs of all other nodes of the layer
    before, which are often larger than |b|.
    """
    x = references.astype(np.float32)
    for number, layer in enumerate(layers[:-1]):
        weight = weights[f"{layer.name}.weight"]
        z = x @ weight.T + weights.get(f"{layer.name}.bias", np.float32(0.0))
        if number and layer.bias and layer.activation.name in ("relu", "leaky_relu"):
            own = nodes[number - 1]
            bias = weights[f"{layer.name}.bias"]
            lift = np.maximum(0.0, -(z[:, own] - bias[own]).min(axis=0))
            bias[own] += lift
            z[:, own] += lift
        x = layer.activation.forward(z)


def pairs(layers: list[LinearLayer]) -> bool:
    """True if the first layer's activation cuts negative values, so that nodes come in pairs."""
    return len(layers) > 1 and layers[0].activation.name in ("relu", "leaky_relu")


def check_width(chain: Chain, layers: list[LinearLayer], kind: str, paths: int) -> None:
    """Raise `ConfigError` if a classifier has too few nodes, naming the layer."""
    classes = layers[-1].outputs
    for number, layer in enumerate(layers[:-1]):
        twice = kind == "paired" and number == 0 and pairs(layers)
        each, many = 2 if twice else 1, paths if kind == "paired" else 1
        needed = each * many * classes
        if layer.outputs < needed:
            raise ConfigError(
                f"{chain.name}: {layer.name} has room for {layer.outputs // each} "
                f"{'pairs' if twice else 'nodes'}, but MKOR needs {many} for each of {classes} "
                f"classes; widen it to {needed}, or take fewer classes or paths."
            )


def _assigned(sizes: np.ndarray, times: int) -> np.ndarray:
    """Assign `times` different columns to each row of `sizes` (n, width), for a large sum."""
    rows = np.repeat(sizes, times, axis=0)
    # Imported here: it takes a third of a second that every server would pay.
    from scipy.optimize import linear_sum_assignment

    return np.asarray(linear_sum_assignment(rows, maximize=True)[1])


def _naive(layers: list[LinearLayer], weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Assign node n of each layer to class n; the first layer takes the mean of its input."""
    classes = layers[-1].outputs
    each = np.arange(classes)
    for number, layer in enumerate(layers):
        weight = weights[f"{layer.name}.weight"]
        weight[:] = 0.0
        if number == 0:
            weight[:classes] = 1.0 / layer.inputs
        else:
            weight[each, each] = 1.0
        if layer.bias:
            # Keeps ReLU active for a black image.
            open_ = (np.arange(layer.outputs) < classes) & (layer is not layers[-1])
            weights[f"{layer.name}.bias"][:] = open_
    return {"nodes": each[:, None], "path": np.ones((classes, 1))}
