"""MKOR's paths through the convolutions: which channel carries which part of the image.

Every considered channel is a copy of one channel of the layer before, read at one tap of the
kernel. "Shift" layers make four copies of each, one of them moved by a pixel to the right, one
down, one both ("4-direction layers" of MKOR section 3.4.1). If a max pool follows, the first
layer also carries 1 − x, whose maximum is one minus the minimum of x.
"""

from dataclasses import dataclass

import numpy as np

from gradleak.errors import ConfigError
from gradleak.models.chain import Chain, ConvLayer
from gradleak.models.pools import POOL, is_common

DIRECTIONS = ((0, 0), (0, 1), (1, 0), (1, 1))


@dataclass(frozen=True)
class Step:
    """Considered channels of one convolution, in an order of their own."""

    # Index (n,) among the considered channels of the layer before, or among the image's channels in
    # the first layer.
    parent: np.ndarray
    tap: np.ndarray  # (n, 2) row and column of the kernel that is read
    sign: np.ndarray  # (n,) 1 for a copy, −1 for 1 − x


@dataclass(frozen=True)
class Plan:
    """Paths of a chain, and the image region of each feature."""

    steps: tuple[Step, ...]  # one for each convolution
    # Channel of the image (n,) that each considered feature channel carries, and 1 or −1.
    colour: np.ndarray
    sign: np.ndarray
    # (n, 2) pixel at which the region of the feature channel's position (0, 0) begins.
    first: np.ndarray
    # Pixels between regions of neighbouring positions, and side of a region, 2^(I+J) in eq. (14).
    stride: int
    side: int
    average: bool  # true if a feature is the mean of its region (average pools), not the maximum


def plan(chain: Chain, shifts: int | None = None) -> Plan:
    """Lay MKOR's paths through a chain (section 3.4.1, eq. 14 to 16).

    `shifts` is I, the number of four-direction layers: the last ones followed by a pool or a
    stride of 2. None for as many as the layers have filters for. Raises `ConfigError` if a layer
    lacks what the paths need, by name.
    """
    layers = chain.convolutions
    for layer in layers:
        _check(chain, layer)
    pools = {layer.pool for layer in layers} - {"none"}
    if len(pools) > 1:
        raise ConfigError(
            f"{chain.name} has max and average pools, for which MKOR has no estimate; use one kind."
        )
    colours = chain.input[0]
    groups = colours * (2 if "max" in pools else 1)
    chosen = _shift_layers(chain, groups, shifts)
    origin = np.zeros((colours, 2), int)
    out = Plan((), np.arange(colours), np.ones(colours, int), origin, 1, 1, "average" in pools)
    for number, layer in enumerate(layers):
        both = number == 0 and "max" in pools
        out = _through(out, layer, both, number in chosen)
    return out


def _through(plan: Plan, layer: ConvLayer, both: bool, shift: bool) -> Plan:
    """Follow the channels through a layer; `both` adds 1 − x, `shift` the directions."""
    count = len(plan.colour)
    signs = (1, -1) if both else (1,)
    moves = DIRECTIONS if shift else DIRECTIONS[:1]
    parent = np.repeat(np.arange(count), len(signs) * len(moves))
    sign = np.tile(np.repeat(signs, len(moves)), count)
    tap = _central_tap(layer, shift) + np.tile(moves, (count * len(signs), 1))
    stride, side = plan.stride * layer.shape.stride[0], plan.side
    if layer.pool != "none":
        side += (POOL - 1) * stride
        stride *= POOL
    return Plan(
        (*plan.steps, Step(parent, tap, sign)),
        plan.colour[parent],
        plan.sign[parent] * sign,
        plan.first[parent] + plan.stride * (tap - np.array(layer.shape.padding)),
        stride,
        side,
        plan.average,
    )


def _central_tap(layer: ConvLayer, shift: bool) -> np.ndarray:
    """Tap (2,) that copies read: the kernel's centre; without padding, one that covers the middle.

    A convolution without padding leaves a margin of its input unread, which is split evenly.
    """
    out = []
    for axis in layer.shape.axes:
        spare = axis.size - 1 - axis.stride * (axis.positions - 1) - int(shift)
        most = axis.kernel - 1 - int(shift)
        out.append((axis.kernel - 1) // 2 if axis.padding else min(max(spare // 2, 0), most))
    return np.array(out)


def _check(chain: Chain, layer: ConvLayer) -> None:
    if layer.skip:
        raise ConfigError(
            f"{chain.name}: {layer.name} has a skip connection, through which MKOR lays no path; "
            "cut it (skip: 0), or use another attack."
        )
    if layer.activation.name not in ("relu", "leaky_relu", "sigmoid", "identity"):
        raise ConfigError(
            f"{chain.name}: {layer.name} is followed by '{layer.activation.name}', which MKOR "
            "does not carry an image through; choose relu, leaky_relu, sigmoid or identity."
        )
    if not is_common(layer.pool):
        raise ConfigError(
            f"{chain.name}: {layer.name} has a pool '{layer.pool}', through which MKOR lays no "
            "path; use 2x2 max or average pools, or strides."
        )
    if layer.shape.stride[0] != layer.shape.stride[1]:
        raise ConfigError(
            f"{chain.name}: {layer.name} has stride {list(layer.shape.stride)}; MKOR needs the "
            "same stride along both axes."
        )


def _shift_layers(chain: Chain, groups: int, shifts: int | None) -> set[int]:
    """Numbers of the four-direction layers; a layer can have too few filters for them."""
    able = [
        number
        for number, layer in enumerate(chain.convolutions)
        if (layer.pool != "none" or layer.shape.stride[0] > 1)
        and all(k >= (k - 1) // 2 + 2 for k in layer.shape.kernel)
    ]
    lacking = _lacks(chain, groups, set())
    if lacking is not None:
        raise ConfigError(
            f"{chain.name}: {lacking.name} has {lacking.shape.filters} filters, but MKOR needs "
            f"{groups} to carry an image of {chain.input[0]} channels; widen it."
        )
    counts = range(len(able) + 1)
    most = max(n for n in counts if _lacks(chain, groups, set(able[len(able) - n :])) is None)
    if shifts is not None and shifts > most:
        raise ConfigError(
            f"{chain.name} has room for {most} four-direction layers, not for shifts: {shifts}; "
            "lower shifts, or widen the convolutions before the pools."
        )
    count = most if shifts is None else shifts
    return set(able[len(able) - count :])


def _lacks(chain: Chain, groups: int, chosen: set[int]) -> ConvLayer | None:
    """First layer with too few filters if layers `chosen` are four-direction ones."""
    count = groups
    for number, layer in enumerate(chain.convolutions):
        count *= len(DIRECTIONS) if number in chosen else 1
        if count > layer.shape.filters:
            return layer
    return None
