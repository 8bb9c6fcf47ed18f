"""Checks of what users pass in: gradients, images and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.errors import ConfigError
from gradleak.library.network import OwnNetwork
from gradleak.models.locks import is_private
from gradleak.models.losses import BINARY
from gradleak.reading.model_checks import times
from gradleak.settings.validation_messages import nearest

# A value by name of a parameter, or one for each parameter in the order of `model.parameters()`.
Gradient = Mapping[str, Any] | Sequence[Any]


def named_gradient(gradient: Gradient, module: nn.Module) -> dict[str, np.ndarray]:
    """Return a gradient as arrays by parameter, in the order of the network's parameters.

    Raises `ConfigError`, naming the tensor and what to do, if it is not a gradient of this network.
    """
    own = dict(module.named_parameters())
    given = _by_name(gradient, module, list(own))
    own = {name: value for name, value in own.items() if name in given}
    found = {name: _array(name, given[name], tuple(value.shape)) for name, value in own.items()}
    if all(np.array_equal(found[n], p.detach().cpu().numpy()) for n, p in own.items()):
        raise ConfigError(
            "gradient: it equals the network's weights; give gradients, for example weights before "
            "a step minus weights after it, divided by the learning rate."
        )
    return found


def _by_name(gradient: Any, module: nn.Module, own: list[str]) -> dict[str, Any]:
    kind = type(module).__name__
    if isinstance(gradient, Mapping):
        buffers = [name for name, _ in module.named_buffers() if name in gradient]
        if buffers:
            raise ConfigError(
                f"gradient: {buffers[0]} is a buffer of {kind}, not a parameter, so this looks "
                "like a state dict; give gradients of parameters alone."
            )
        # What a client keeps of a lock may be left out.
        missing = [name for name in own if name not in gradient and not is_private(name)]
        extra = [str(name) for name in gradient if name not in own]
        if missing and extra and extra[0].endswith(f".{own[0]}"):
            prefix = extra[0].removesuffix(own[0])
            raise ConfigError(
                f"gradient: its names begin with {prefix}, where {kind} has {own[0]}; take the "
                "prefix away, which a wrapper such as DistributedDataParallel adds."
            )
        if missing:
            near = nearest(missing[0], extra)
            raise ConfigError(
                f"gradient: {missing[0]} of {kind} is missing{near}; give one tensor for each of "
                f"its {len(own)} parameters, zeros where the loss does not depend on it."
            )
        if extra:
            raise ConfigError(
                f"gradient: {extra[0]} is not a parameter of {kind}{nearest(extra[0], own)}; take "
                "it out, or give the network that the gradient is of."
            )
        return dict(gradient)
    if isinstance(gradient, str | bytes) or not isinstance(gradient, Sequence):
        raise ConfigError(
            "gradient: give tensors by name of a parameter, or a list of them in the order of "
            f"model.parameters(), not {type(gradient).__name__}."
        )
    if len(gradient) != len(own):
        raise ConfigError(
            f"gradient: it has {len(gradient)} tensors, but {kind} has {len(own)} parameters; give "
            "one for each, in the order of model.parameters()."
        )
    return dict(zip(own, gradient, strict=True))


def _array(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    if value is None:
        raise ConfigError(
            f"gradient: {name} is None; give zeros if the loss does not depend on it, or call "
            "backward before reading .grad."
        )
    found = _numbers(f"gradient: {name}", value)
    if found.shape != shape:
        raise ConfigError(
            f"gradient: {name} has the shape {times(found.shape)}, but the parameter has "
            f"{times(shape)}; give the network that the gradient is of."
        )
    return found


def _numbers(what: str, value: Any) -> np.ndarray:
    """Return real floating-point numbers as float32 or float64."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        value = tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
    found = np.asarray(value)
    if not np.issubdtype(found.dtype, np.floating):
        raise ConfigError(
            f"{what} is of type {found.dtype}, not floating-point numbers; convert it."
        )
    return found if found.dtype == np.float64 else found.astype(np.float32)


def image_batch(images: Any, network: OwnNetwork, what: str = "images") -> np.ndarray:
    """Return images (K, C, H, W) as floating-point numbers; `ConfigError` for other shapes."""
    if getattr(images, "dtype", None) in (torch.uint8, np.dtype(np.uint8)):
        raise ConfigError(
            f"{what}: they are bytes; give the network's inputs, for example images / 255."
        )
    found = _numbers(what, images)
    if found.ndim != 4 or found.shape[1:] != network.size or not len(found):
        raise ConfigError(
            f"{what}: give a batch (K, {', '.join(map(str, network.size))}), not "
            f"{times(found.shape)}."
        )
    return found


def label_batch(labels: Any, network: OwnNetwork, count: int | None = None) -> np.ndarray:
    """Return labels (K,) that fit loss and network; `ConfigError` otherwise."""
    values = labels.detach().cpu().numpy() if isinstance(labels, torch.Tensor) else labels
    found = np.atleast_1d(np.asarray(values))
    margin = network.loss in BINARY
    if found.ndim != 1 or (not margin and not np.issubdtype(found.dtype, np.integer)):
        raise ConfigError(
            f"labels: give one class for each image as whole numbers, not {labels!r}."
        )
    if count is not None and len(found) != count:
        raise ConfigError(f"labels: there are {len(found)} for {count} images; give one for each.")
    last = network.classes - 1
    wrong = [y for y in found.tolist() if (y not in (-1, 1) if margin else not 0 <= y <= last)]
    if wrong:
        takes = f"the {network.loss} loss takes -1 or 1"
        classes = f"{network.name} has classes 0 to {last}"
        raise ConfigError(f"labels: {wrong[0]} is out of range; {takes if margin else classes}.")
    return found.astype(np.int64)
