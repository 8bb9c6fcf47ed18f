"""Which of a chain's pools a layer of a network is."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from gradleak.auditing.reading import Layer
from gradleak.errors import NotApplicable
from gradleak.models.chain import POOL


def argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    """An argument of a function's call."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def pool_kind(layer: Layer, node: fx.Node, own: nn.Module | None) -> str | None:
    """Which of a chain's pools a layer is; None if it changes nothing."""
    what = type(own) if own is not None else node.target
    adaptive = what in (nn.AdaptiveAvgPool2d, functional.adaptive_avg_pool2d)
    if adaptive and layer.output_shape == layer.input_shape:
        return None
    mean = adaptive or what in ("mean", torch.mean)
    if mean and layer.output_shape[1:] in ((1, 1), ()):
        return "global"
    averages = what in (nn.AvgPool2d, functional.avg_pool2d)
    if averages or what in (nn.MaxPool2d, functional.max_pool2d, torch.max_pool2d):
        settings = _settings(node, own)
        known = {(POOL, POOL, 0): "average" if averages else "max"}
        if averages:
            known[layer.input_shape[1], layer.input_shape[1], 0] = "global"
        else:
            known[3, POOL, 1] = "max3"
        if settings in known:
            return known[settings]
    raise NotApplicable(
        f"{layer.name} ({layer.detail}) is another pool than 2x2, the largest of 3x3 at stride 2 "
        "with padding 1, or the mean of all places."
    )


def _settings(node: fx.Node, own: nn.Module | None) -> tuple[int, int, int] | None:
    """Kernel, stride and padding of a pool; None if they differ by axis or it does more."""
    source: Any = own
    if own is None:
        kernel = argument(node, 1, "kernel_size", None)
        stride = argument(node, 2, "stride", None) or kernel
        found = kernel, stride, argument(node, 3, "padding", 0)
        dilation = argument(node, 4, "dilation", 1)
        more = dilation != 1 or argument(node, 5, "ceil_mode", False)
    else:
        found = source.kernel_size, source.stride, source.padding
        more = source.ceil_mode or getattr(source, "dilation", 1) not in (1, (1, 1))
    sides = [value if isinstance(value, tuple) else (value, value) for value in found]
    if more or any(down != across for down, across in sides):
        return None
    kernel, stride, padding = (side[0] for side in sides)
    return kernel, stride, padding
