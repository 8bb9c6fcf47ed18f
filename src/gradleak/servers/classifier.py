"""MKOR's parameters of the classifier: naive (section 3.2.2) and inconspicuous (eq. 10 to 13)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradleak.errors import ConfigError
from gradleak.models.chain import Chain, LinearLayer


@dataclass(frozen=True)
class ClassifierDesign:
    """Assignment of nodes to each class."""

    # ``naive``: one node per class and layer, joined by weights of 1, all else zero. ``paired``:
    # eq. (10) to (13). ``untouched``: the weights as they are; the attack then solves for what all
    # rows have in common.
    kind: str
    sigma: float  # σ of eq. (12) relative to the initial limit of the layer, 1/sqrt(inputs)
    # B, added to the bias of the first class: its probability is near 1, and those of the other
    # classes of the order e^−B.
    output_bias: float
    # Parallel pairs of nodes of each class: dropout has to hit all of them to lose the class
    # (section 3.5).
    paths: int = 1

    def write(
        self,
        chain: Chain,
        weights: dict[str, np.ndarray],
        references: np.ndarray,
        generator: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        """Write the design into `weights`; return ``nodes`` and ``path`` of `Secret`.

        `references` (3, n) are features from the convolutions.
        """
        layers = [layer for layer in chain.layers if isinstance(layer, LinearLayer)]
        check_width(chain, layers, self.kind, self.paths)
        out: dict[str, np.ndarray] = {}
        if self.kind == "naive":
            out = _naive(layers, weights)
        elif self.kind == "paired":
            out = self._paired(layers, weights, references, generator)
        if self.output_bias:
            name = f"{layers[-1].name}.bias"
            if name not in weights:
                raise ConfigError(
                    f"output_bias: {self.output_bias:g}, but {chain.name} ends without a bias; "
                    "set it to 0."
                )
            weights[name][0] += self.output_bias
        return out

    def _paired(
        self,
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
            times = self.paths if layer is layers[-1] else 1
            times *= 2 if layer is layers[1] and pairs(layers) else 1
            nodes = _assigned(np.abs(weight[after]), times)
            ends = np.repeat(after, times)
            kept = np.abs(weight[ends, nodes])
            limit = self.sigma / np.sqrt(layer.inputs)
            weight[:, nodes] = limit * generator.standard_normal((layer.outputs, len(nodes)))
            weight[ends, nodes] = kept
            if layer.bias:
                bias = weights[f"{layer.name}.bias"]
                bias[after] = np.abs(bias[after])
            path = np.repeat(path, times) * kept
            opened.append(after)
            after = nodes
        if pairs(layers):
            self._opposed(layers[0], weights, after, generator)
        _keep_open(layers, weights, references, opened[::-1])
        return {"nodes": after.reshape(classes, -1), "path": path.reshape(classes, -1)}

    def _opposed(
        self,
        first: LinearLayer,
        weights: dict[str, np.ndarray],
        nodes: np.ndarray,
        generator: np.random.Generator,
    ) -> None:
        """Write eq. (10), (11): each second row of a pair is α < 0 times the first."""
        alpha = -generator.uniform(0.8, 1.25, len(nodes) // 2)
        weight = weights[f"{first.name}.weight"]
        weight[nodes[1::2]] = alpha[:, None] * weight[nodes[::2]]
        if first.bias:
            bias = weights[f"{first.name}.bias"]
            bias[nodes[1::2]] = alpha * bias[nodes[::2]]


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
    """Check that a classifier has enough nodes.

    Raises
    ------
    ConfigError
        If not, naming the layer.
    """
    classes = layers[-1].outputs
    for number, layer in enumerate(layers[:-1]):
        twice = kind == "paired" and number == 0 and pairs(layers)
        many = paths if kind == "paired" else 1
        needed, what = ((2 if twice else 1) * many * classes, "pairs" if twice else "nodes")
        if layer.outputs < needed:
            room = layer.outputs // 2 if twice else layer.outputs
            raise ConfigError(
                f"{chain.name}: {layer.name} has room for {room} {what}, but MKOR needs {many} for "
                f"each of {classes} classes; widen it to {needed}, or take fewer classes or paths."
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
            bias = weights[f"{layer.name}.bias"]
            bias[:] = 0.0
            # Keeps ReLU active for a black image.
            bias[:classes] = 1.0 if layer is not layers[-1] else 0.0
    return {"nodes": each[:, None], "path": np.ones((classes, 1))}
