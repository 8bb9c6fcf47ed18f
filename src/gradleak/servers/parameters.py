"""MKOR's parameters: paths in convolutions (section 3.4.1, eq. 20), nodes (3.2.2, eq. 10 to 13)."""

from collections.abc import Sequence

import numpy as np

from gradleak.errors import ConfigError
from gradleak.models.chain import Chain, ConvLayer, LinearLayer
from gradleak.servers.plan import Plan, Step

Parameters = dict[str, np.ndarray]
Channels = tuple[np.ndarray, np.ndarray]  # considered ones of the layer before, and of this one
# Shifts behind a normalisation that keep ReLU active or inactive: an image's darkest pixel is
# rarely three deviations below the mean, and no pixel is ten above.
OPEN = 3.0
SHUT = 10.0
# Slack for float32 where a sum must not be positive.
ROUNDING = 1e-5


def write_convolutions(
    chain: Chain,
    weights: Parameters,
    plan: Plan,
    generator: np.random.Generator,
    *,
    betas: Sequence[float],
    noise: float,
    spare: str,
) -> Parameters:
    """Write the paths into `weights`; return ``channel{l}``, the filters of each step.

    `betas` are β of each layer, or of all, `noise` is σ relative to β, and `spare` is that of
    `gradleak.servers.mkor.MkorServer`, or ``naive`` for the naive design.
    """
    layers = chain.convolutions
    betas = [*betas] * len(layers) if len(betas) == 1 else betas
    if len(betas) != len(layers):
        raise ConfigError(
            f"beta has {len(betas)} values, but {chain.name} has {len(layers)} convolutions; "
            "give one for each, or a single one."
        )
    channels = {}
    before = np.arange(chain.input[0])
    # The largest signal of a considered channel, and bounds that include its noise.
    most, ceiling = 1.0, np.ones(len(before))
    for number, (layer, step, beta) in enumerate(zip(layers, plan.steps, betas, strict=True)):
        count, filters = len(step.parent), layer.shape.filters
        chosen = np.arange(count) if spare == "naive" else generator.permutation(filters)[:count]
        scale = beta, most, noise * beta
        _write_layer(layer, weights, step, (before, chosen), scale, spare, generator)
        if spare == "silent":
            ceiling = _silence(layer, weights, (before, chosen), ceiling)
        channels[f"channel{number + 1}"] = before = chosen
        most = 1.0 if layer.activation.name == "sigmoid" else beta * most * (1 + noise)
    return channels


def _write_layer(
    layer: ConvLayer,
    weights: Parameters,
    step: Step,
    channels: Channels,
    scale: tuple[float, float, float],
    spare: str,
    generator: np.random.Generator,
) -> None:
    """Write a layer's paths from channels[0] to channels[1]; `scale`: β, largest input, σ."""
    (before, chosen), (beta, most, noise) = channels, scale
    weight = weights[f"{layer.name}.weight"]
    bias = weights[f"{layer.name}.bias"] if layer.bias else None
    if bias is None and (step.sign < 0).any():
        raise ConfigError(
            f"{layer.name} has no bias, which 1 − x needs (MKOR's min filter); give it bias: true."
        )
    if spare == "naive":
        weight[:] = 0.0
        if bias is not None:
            bias[:] = 0.0
    else:
        sources = slice(None) if spare == "noise" else before
        rows = weight[chosen]
        rows[:, sources] = noise * generator.standard_normal(rows[:, sources].shape)
        weight[chosen] = rows
    if layer.normed:
        # Few normalised values are more than this many deviations from 0.
        norm = weights[f"{layer.name}_norm.bias"]
        norm[:] = -SHUT if spare in ("silent", "naive") else norm
        norm[chosen] = OPEN
    source = before[step.parent]
    weight[chosen, source, step.tap[:, 0], step.tap[:, 1]] = beta * step.sign
    if bias is None:
        return
    bias[chosen] = np.where(step.sign < 0, beta * most, 0.0)
    if spare == "naive":
        return
    if layer.activation.name == "sigmoid":
        # A sigmoid is closest to linear around the middle of its input.
        bias[chosen] = -0.5 * beta * step.sign
    bias[chosen] += noise * most * np.abs(generator.standard_normal(len(chosen)))


def _silence(
    layer: ConvLayer, weights: Parameters, channels: Channels, ceiling: np.ndarray
) -> np.ndarray:
    """Lower the biases of all channels but channels[1] until no image can activate them.

    `ceiling` bounds channels[0], the only inputs, which are not negative, from above; returns the
    bounds of channels[1].
    """
    before, chosen = channels
    if layer.normed:
        return np.full(len(chosen), OPEN + SHUT)
    weight, bias = weights[f"{layer.name}.weight"], weights[f"{layer.name}.bias"]
    reach = np.maximum(weight[:, before], 0.0).sum(axis=(2, 3), dtype=np.float64) @ ceiling
    spare = np.setdiff1d(np.arange(layer.shape.filters), chosen)
    bias[spare] = -np.maximum(np.abs(bias[spare]), reach[spare] * (1.0 + ROUNDING))
    bounds: np.ndarray = np.maximum(reach[chosen] + bias[chosen], 0.0)
    return bounds


def check_silent(chain: Chain) -> None:
    """Raise `ConfigError` where channels cannot be silenced."""
    other = [a.activation.name for a in chain.convolutions if a.activation.name != "relu"]
    if other:
        raise ConfigError(
            f"spare: silent needs relu after every convolution, but {chain.name} has "
            f"'{other[0]}'; choose spare: noise."
        )
    bare = [a.name for a in chain.convolutions if not a.bias and not a.normed]
    if bare:
        raise ConfigError(
            f"spare: silent lowers biases, but {bare[0]} of {chain.name} has none; give it bias: "
            "true, or choose spare: noise."
        )


def write_classifier(
    chain: Chain,
    weights: Parameters,
    references: np.ndarray,
    generator: np.random.Generator,
    *,
    kind: str,
    paths: int,
    sigma: float,
    output_bias: float,
) -> Parameters:
    """Write the design `kind` into `weights`; return ``nodes`` and ``path`` of `Secret`.

    `references` (3, n) are features from the convolutions; the rest as in
    `gradleak.servers.mkor.MkorServer`.
    """
    layers = [layer for layer in chain.layers if isinstance(layer, LinearLayer)]
    _check_width(chain, layers, kind, paths)
    out: Parameters = {}
    if kind == "naive":
        out = _naive(layers, weights)
    elif kind == "paired":
        out = _paired(layers, weights, references, generator, paths, sigma)
    if output_bias:
        name = f"{layers[-1].name}.bias"
        if name not in weights:
            raise ConfigError(
                f"output_bias: {output_bias:g}, but {chain.name} ends without a bias; set it to 0."
            )
        weights[name][0] += output_bias
    return out


def _paired(
    layers: list[LinearLayer],
    weights: Parameters,
    references: np.ndarray,
    generator: np.random.Generator,
    paths: int,
    sigma: float,
) -> Parameters:
    """Write eq. (10) to (13), from the output backwards.

    The paper picks nodes at random. Here each class gets those with already large weights on its
    path, which changes no weight and leaves more signal.
    """
    opened = []
    classes = layers[-1].outputs
    after, path = np.arange(classes), np.ones(classes)
    for layer in reversed(layers[1:]):
        weight = weights[f"{layer.name}.weight"]
        times = paths if layer is layers[-1] else 1
        times *= 2 if layer is layers[1] and _pairs(layers) else 1
        nodes = _assigned(np.abs(weight[after]), times)
        ends = np.repeat(after, times)
        kept = np.abs(weight[ends, nodes])
        limit = sigma / np.sqrt(layer.inputs)
        weight[:, nodes] = limit * generator.standard_normal((layer.outputs, len(nodes)))
        weight[ends, nodes] = kept
        if layer.bias:
            bias = weights[f"{layer.name}.bias"]
            bias[after] = np.abs(bias[after])
        path = np.repeat(path, times) * kept
        opened.append(after)
        after = nodes
    if _pairs(layers):
        # Eq. (10), (11): each second row of a pair is α < 0 times the first.
        alpha = -generator.uniform(0.8, 1.25, len(after) // 2)
        for kind in ("weight", "bias")[: 1 + layers[0].bias]:
            rows = weights[f"{layers[0].name}.{kind}"]
            rows[after[1::2]] = (alpha * rows[after[::2]].T).T
    _keep_open(layers, weights, references, opened[::-1])
    return {"nodes": after.reshape(classes, -1), "path": path.reshape(classes, -1)}


def _keep_open(
    layers: list[LinearLayer], weights: Parameters, references: np.ndarray, nodes: list[np.ndarray]
) -> None:
    """Raise biases of nodes that the references would close.

    Eq. (13) takes |b|, but the outputs of all other nodes of the layer before may exceed it.
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


def _pairs(layers: list[LinearLayer]) -> bool:
    """True if the first layer's activation cuts negative values, so that nodes come in pairs."""
    return len(layers) > 1 and layers[0].activation.name in ("relu", "leaky_relu")


def _check_width(chain: Chain, layers: list[LinearLayer], kind: str, paths: int) -> None:
    """Raise `ConfigError` if a classifier has too few nodes, naming the layer."""
    classes = layers[-1].outputs
    for number, layer in enumerate(layers[:-1]):
        twice = kind == "paired" and number == 0 and _pairs(layers)
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


def _naive(layers: list[LinearLayer], weights: Parameters) -> Parameters:
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
