"""`gradleak.capture`: the gradient that a client shares."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import torch
from torch import nn

from gradleak.client.gradient_checks import check_gradient
from gradleak.client.local_training import Recipe, local_steps
from gradleak.errors import ConfigError
from gradleak.library.network import OwnNetwork, as_tensor, read_network
from gradleak.library.tensors import image_batch, label_batch
from gradleak.library.update import Update
from gradleak.reading.gradients import gradient, passing


@overload
def capture(
    model: nn.Module,
    images: Any,
    labels: Any,
    *,
    loss: str = ...,
    mode: str = ...,
    recipe: None = None,
    seed: int = ...,
) -> dict[str, torch.Tensor]: ...


@overload
def capture(
    model: nn.Module,
    images: Any,
    labels: Any,
    *,
    loss: str = ...,
    mode: str = ...,
    recipe: Recipe,
    seed: int = ...,
) -> Update: ...


def capture(
    model: nn.Module,
    images: Any,
    labels: Any,
    *,
    loss: str = "cross_entropy",
    mode: str = "training",
    recipe: Recipe | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor] | Update:
    """Gradient of the mean loss over a batch, ∂/∂W (1/K) Σ_k ℓ(f(x_k), y_k), by parameter.

    What a client of FedSGD shares: one step, no defence. With a recipe, what a client of FedAvg
    has after its local training. The network is not modified.

    Parameters
    ----------
    model
        Any network that gives a row of scores for each image.
    images
        Inputs of the network, floating-point (K, C, H, W), a tensor or an array.
    labels
        Classes (K,), or −1 and 1 under a loss of one output.
    loss
        ``cross_entropy``, ``raw_logits`` (−score of the class), or of one output ``logistic``,
        ``exponential``, ``hinge``.
    mode
        ``training`` or ``evaluation``, of batch norms and dropout.
    recipe
        The client's local training: epochs, batch size, learning rate, optimiser.
    seed
        Of dropout.

    Returns
    -------
    dict or Update
        A tensor of each parameter's shape by its name; with a recipe, weights and buffers before
        and after.

    Raises
    ------
    GradleakError
        In one sentence, if network, images and labels do not fit together, or the gradient is
        zero or not finite.

    Notes
    -----
    R-GAP section 3 and COPA section 2 attack K = 1, R-GAP appendix F and MKOR section 3 batches.
    """
    shape = getattr(images, "shape", ())
    if len(shape) != 4:
        raise ConfigError("images: give a batch (K, C, H, W), as a tensor or an array.")
    network = read_network(model, shape[1:], loss=loss, mode=mode)
    batch = image_batch(images, network)
    truth = label_batch(labels, network, len(batch))
    # Dropout must not advance the global random state.
    if recipe is not None and not isinstance(recipe, Recipe):
        raise ConfigError(f"recipe: give a gradleak.Recipe, not {recipe!r}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if recipe is not None:
            return _trained(network, batch, truth, recipe)
        found = gradient(network.module, batch, truth, loss, mode)
    check_gradient(network.attacked, found)
    return {name: as_tensor(value, network.module) for name, value in found.items()}


def _trained(network: OwnNetwork, images: np.ndarray, labels: np.ndarray, recipe: Recipe) -> Update:
    module = network.module
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    buffers = _buffers(module)
    truth = torch.from_numpy(labels).to(next(module.parameters()).device)
    with passing(module, network.mode):
        batch = as_tensor(images, module)
        after = local_steps(module, before, batch, truth, recipe, loss=network.loss)
        moved = _buffers(module)
    return Update(before, after, recipe, len(images), buffers, moved)


def _buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.named_buffers()}
