"""Match pooling layers of a network with those that chains support."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gradleak.errors import NotApplicable
from gradleak.models.chain import POOL
from gradleak_audit.read.fx_graph import Layer


def pool_kind(layer: Layer) -> str | None:
    """Return the chain's name for a pooling layer; None if it changes nothing."""
    adaptive = layer.what in (nn.AdaptiveAvgPool2d, functional.adaptive_avg_pool2d)
    if adaptive and layer.output_shape == layer.input_shape:
        return None
    mean = adaptive or layer.what in ("mean", torch.mean)
    if mean and layer.output_shape[1:] in ((1, 1), ()):
        return "global"
    known: dict[Any, str] = {}
    if layer.what in (nn.AvgPool2d, functional.avg_pool2d):
        side = layer.input_shape[1]
        known = {(POOL, POOL, 0): "average"} | {(side, side, 0): "global"}
    elif layer.what in (nn.MaxPool2d, functional.max_pool2d, torch.max_pool2d):
        known = {(POOL, POOL, 0): "max", (3, POOL, 1): "max3"}
    if known and (settings := _settings(layer)) in known:
        return known[settings]
    raise NotApplicable(
        f"{layer} is another pool than 2x2, the largest of 3x3 at stride 2 with padding 1, or the "
        "mean of all places."
    )


def _settings(layer: Layer) -> tuple[int, int, int] | None:
    """Kernel, stride and padding of a pool; None if it is anisotropic or has other options."""
    kernel = layer.option("kernel_size", 1, None)
    found = kernel, layer.option("stride", 2, None) or kernel, layer.option("padding", 3, 0)
    more = layer.option("dilation", 4, 1) not in (1, (1, 1)) or layer.option("ceil_mode", 5, False)
    sides = [value if isinstance(value, tuple) else (value, value) for value in found]
    if more or any(down != across for down, across in sides):
        return None
    kernel, stride, padding = (side[0] for side in sides)
    return kernel, stride, padding
