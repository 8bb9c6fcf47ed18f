"""MKOR's parameters of convolutions: naive (section 3.4.1) and inconspicuous (eq. 20)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradleak.errors import ConfigError
from gradleak.models.chain import Chain, ConvLayer
from gradleak.servers.plan import Plan, Step

if TYPE_CHECKING:
    from gradleak.servers.mkor import MkorServer

# Shifts behind a normalisation that keep ReLU active or inactive: an image's darkest pixel is
# rarely three deviations below the mean, and no pixel is ten above.
OPEN = 3.0
SHUT = 10.0
# Slack for float32 where a sum must not be positive.
ROUNDING = 1e-5


def write_convolutions(
    server: MkorServer,
    chain: Chain,
    weights: dict[str, np.ndarray],
    plan: Plan,
    generator: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Write the paths into `weights`; return ``channel{l}``, the filters of each step."""
    layers, naive = chain.convolutions, server.convolutions == "naive"
    beta_ = server.beta if isinstance(server.beta, list) else [server.beta]
    betas = beta_ * len(layers) if len(beta_) == 1 else beta_
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
        chosen = np.arange(count) if naive else generator.permutation(filters)[:count]
        _write_layer(server, layer, weights, step, (before, chosen), (beta, most), generator)
        if server.spare == "silent" and not naive:
            ceiling = _silence(layer, weights, (before, chosen), ceiling)
        channels[f"channel{number + 1}"] = before = chosen
        most = 1.0 if layer.activation.name == "sigmoid" else beta * most * (1 + server.noise)
    return channels


def _write_layer(
    server: MkorServer,
    layer: ConvLayer,
    weights: dict[str, np.ndarray],
    step: Step,
    channels: tuple[np.ndarray, np.ndarray],
    scale: tuple[float, float],
    generator: np.random.Generator,
) -> None:
    """Write a layer's paths from channels[0] to channels[1]; `scale`: β, largest input."""
    (before, chosen), (beta, most) = channels, scale
    naive = server.convolutions == "naive"
    weight = weights[f"{layer.name}.weight"]
    bias = weights[f"{layer.name}.bias"] if layer.bias else None
    if bias is None and (step.sign < 0).any():
        raise ConfigError(
            f"{layer.name} has no bias, which 1 − x needs (MKOR's min filter); give it bias: true."
        )
    if naive:
        weight[:] = 0.0
        if bias is not None:
            bias[:] = 0.0
    else:
        sources = slice(None) if server.spare == "noise" else before
        rows = weight[chosen]
        drawn = generator.standard_normal(rows[:, sources].shape)
        rows[:, sources] = server.noise * beta * drawn
        weight[chosen] = rows
    if layer.normed:
        # Few normalised values are more than this many deviations from 0.
        norm = weights[f"{layer.name}_norm.bias"]
        norm[:] = -SHUT if server.spare == "silent" or naive else norm
        norm[chosen] = OPEN
    source = before[step.parent]
    weight[chosen, source, step.tap[:, 0], step.tap[:, 1]] = beta * step.sign
    if bias is None:
        return
    bias[chosen] = np.where(step.sign < 0, beta * most, 0.0)
    if naive:
        return
    if layer.activation.name == "sigmoid":
        # A sigmoid is closest to linear around the middle of its input.
        bias[chosen] = -0.5 * beta * step.sign
    bias[chosen] += server.noise * beta * most * np.abs(generator.standard_normal(len(chosen)))


def _silence(
    layer: ConvLayer,
    weights: dict[str, np.ndarray],
    channels: tuple[np.ndarray, np.ndarray],
    ceiling: np.ndarray,
) -> np.ndarray:
    """Lower the biases of all channels but channels[1] until no image can activate them.

    `ceiling` bounds the values of channels[0], the only inputs, which are not negative, from
    above. Returns the bounds of channels[1].
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


def check_spare(chain: Chain, spare: str) -> None:
    """Raise for ``silent`` where no channel can be silenced."""
    other = [a.activation.name for a in chain.convolutions if a.activation.name != "relu"]
    if spare == "silent" and other:
        raise ConfigError(
            f"spare: silent needs relu after every convolution, but {chain.name} has "
            f"'{other[0]}'; choose spare: noise."
        )
    bare = [a.name for a in chain.convolutions if not a.bias and not a.normed]
    if spare == "silent" and bare:
        raise ConfigError(
            f"spare: silent lowers biases, but {bare[0]} of {chain.name} has none; give it bias: "
            "true, or choose spare: noise."
        )
