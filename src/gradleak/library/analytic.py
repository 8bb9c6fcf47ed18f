"""Reads the first layer of any network: which pixels it sees, and its gradient in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.attacks.base import Reconstruction
from gradleak.attacks.closed_form import first_layer
from gradleak.errors import NotApplicable
from gradleak.library.network import OwnNetwork, as_tensor
from gradleak.reading.gradients import passing

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


@dataclass(frozen=True)
class FirstLayer:
    """The layer that sees the image."""

    name: str
    pixels: np.ndarray  # int (P, k): which pixel of the image each entry of a patch is; P = 1: all


def invert_first(
    network: OwnNetwork, gradient: Mapping[str, np.ndarray], labels: tuple[int, ...], batch: int
) -> Reconstruction:
    """Reconstruct one image; `NotApplicable` if the first layer does not see its pixels once each.

    Raises `NumericsError` if the gradient leaves patches open.
    """
    if batch != 1:
        raise NotApplicable(
            f"analytic reads one image, but this is a batch of {batch}; use "
            "attack='inverting_gradients'."
        )
    layer = first_of(network)
    gradients = {name: value.astype(np.float64) for name, value in gradient.items()}
    weight = gradients[f"{layer.name}.weight"]
    weight, bias = weight.reshape(len(weight), -1), gradients.get(f"{layer.name}.bias")
    if bias is None:
        raise NotApplicable(
            f"{layer.name} of {network.name} has no bias, whose gradient analytic needs; use "
            "attack='dlg'."
        )
    count = len(layer.pixels)
    if count == 1:
        patches, stop = first_layer.of_image(weight, bias)[None], f"{layer.name} sees the image"
    else:
        found = first_layer.positions(gradients, count, bias)
        if found is None:
            raise NotApplicable(
                f"{layer.name} of {network.name} sees {count} patches, and the gradient of no "
                "parameter sums to that of its bias, as that of learned positions would without "
                "noise; use attack='dlg'."
            )
        patches = first_layer.of_patches(weight, found[1])
        stop = f"{layer.name} sees {count} patches, whose positions are {found[0]}"
    image = np.empty(prod(network.size))
    image[layer.pixels.ravel()] = patches.ravel()
    return Reconstruction(image.reshape(1, *network.size), stop, classes=labels)


def first_of(network: OwnNetwork) -> FirstLayer:
    """Find the first layer with weights, and which pixel each of its inputs is.

    An image of different values runs through the network; wherever the first layer sees these
    values, each once, it sees the pixels in another order.
    """
    module, size = network.module, prod(network.size)
    seen: list[tuple[str, nn.Module, torch.Tensor]] = []

    def keep(name: str, part: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not seen:
            seen.append((name, part, inputs[0].detach().clone()))

    hooks = [
        part.register_forward_pre_hook(lambda part, x, name=name: keep(name, part, x))
        for name, part in module.named_modules()
        if isinstance(part, LAYERS)
    ]
    # Exact in float32: no image has 2^24 values.
    values = np.arange(1, size + 1, dtype=np.float64).reshape(1, *network.size)
    try:
        with torch.no_grad(), passing(module, "evaluation"):
            module(as_tensor(values, module))
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        raise NotApplicable(f"{network.name} has no layer that analytic knows; use attack='dlg'.")
    name, part, found = seen[0]
    order = _patches(part, found).double().cpu().numpy()
    if order.size != size or not np.array_equal(np.sort(order.ravel()), values.ravel()):
        raise NotApplicable(
            f"The first layer, {name} of {network.name}, sees pixels scaled, padded or more than "
            "once, which no closed form undoes; use attack='dlg'."
        )
    return FirstLayer(name, order.astype(int) - 1)


def _patches(part: nn.Module, found: torch.Tensor) -> torch.Tensor:
    """Return a layer's input as patches (P, k), in the order of its outputs."""
    if isinstance(part, nn.Linear):
        return found.reshape(-1, found.shape[-1])
    if isinstance(part, nn.Conv2d) and part.groups == 1:
        own: Any = {"kernel_size": part.kernel_size, "stride": part.stride}
        padding = part.padding if not isinstance(part.padding, str) else 0
        columns = nn.functional.unfold(found, padding=padding, dilation=part.dilation, **own)
        return columns[0].T
    return found.reshape(1, -1)[:, :0]
