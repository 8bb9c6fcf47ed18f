"""Gradients that a client would share from any PyTorch network, by automatic differentiation."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.client.capture import mean_loss
from gradleak.errors import ConfigError
from gradleak.models.losses import BINARY, OF_CLASSES
from gradleak.reading.model_checks import Size, first_line, times

MODES = ("training", "evaluation")
# Images of a trial forward pass; norms in training mode need more than one.
PASSED = 2


def check_loss(loss: str, classes: int) -> None:
    """Raise `ConfigError` if a loss does not fit the network's outputs."""
    if loss in BINARY and classes != 1:
        clash, others = f"one output, but the network has {classes}", ", ".join(OF_CLASSES)
    elif loss in OF_CLASSES and classes == 1:
        clash, others = "an output for each class, but the network has one", ", ".join(BINARY)
    else:
        return
    raise ConfigError(f"loss: {loss} takes {clash}; choose one of {others}.")


def check_training(module: nn.Module, size: Size, classes: int) -> None:
    """Raise `ConfigError` unless training mode, too, gives `classes` numbers for an image."""
    like, name = next(module.parameters()), type(module).__name__
    # Keep dropout from advancing the global random state.
    with passing(module, "training"), torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            found = module(torch.zeros(PASSED, *size).to(like))
        except Exception as error:
            raise ConfigError(
                f"{name} takes no images of {times(size)} in training mode "
                f"({first_line(error)}); take mode: evaluation, or correct the network."
            ) from error
    if not isinstance(found, torch.Tensor) or found.shape != (PASSED, classes):
        given = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(
            f"{name} gives {given} in training mode, but {PASSED} rows of {classes} class scores "
            "in evaluation mode; take mode: evaluation, or wrap it in a module that returns those "
            "scores alone."
        )


def gradient(
    module: nn.Module, images: np.ndarray, labels: np.ndarray, loss: str, mode: str
) -> dict[str, np.ndarray]:
    """Gradient of the mean loss of `images` (K, C, H, W) by parameter name."""
    named = dict(module.named_parameters())
    with passing(module, mode):
        value = _loss(module, images, labels, loss)
        found = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    return {
        name: np.zeros(tuple(p.shape), np.float32) if g is None else g.detach().cpu().numpy()
        for (name, p), g in zip(named.items(), found, strict=True)
    }


def deltas(
    module: nn.Module, image: np.ndarray, label: int, loss: str, mode: str, layers: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return dJ/dZ of those linear layers that run, by name, for one image; 0 if Z is unused."""
    outputs: dict[str, torch.Tensor] = {}

    def keep(name: str, _: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        outputs[name] = output
        # An in-place activation would overwrite Z itself.
        return output.clone()

    with passing(module, mode), ExitStack() as stack:
        for name in layers:
            hook = module.get_submodule(name).register_forward_hook(partial(keep, name))
            stack.callback(hook.remove)
        value = _loss(module, image[None], np.array([label]), loss)
        if not outputs:
            return {}
        used: Any = {"allow_unused": True, "materialize_grads": True}
        found = torch.autograd.grad(value, list(outputs.values()), **used)
    return {
        name: g[0].detach().double().cpu().numpy() for name, g in zip(outputs, found, strict=True)
    }


@contextmanager
def passing(module: nn.Module, mode: str) -> Iterator[nn.Module]:
    """Put a network into a mode, and restore modes and buffers afterwards."""
    modes = {part: part.training for part in module.modules()}
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    module.train(mode == "training")
    try:
        yield module
    finally:
        for part, training in modes.items():
            part.training = training
        with torch.no_grad():
            for name, value in module.named_buffers():
                value.copy_(buffers[name])


def _loss(module: nn.Module, images: np.ndarray, labels: np.ndarray, loss: str) -> torch.Tensor:
    like = next(module.parameters())
    # Copied, since a network may begin with an in-place operation.
    given = torch.from_numpy(np.ascontiguousarray(images)).to(like, copy=True)
    try:
        output = module(given)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            f"A norm of {type(module).__name__} in training mode has one value a channel for "
            f"{len(images)} image of {times(images.shape[1:])}, and would make it 0; "
            "take mode: evaluation, larger images or larger batches."
        ) from error
    return mean_loss(loss, output, torch.from_numpy(labels).to(like.device))
