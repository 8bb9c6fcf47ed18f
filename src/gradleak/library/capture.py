"""`gradleak.capture`: the gradient that a client shares."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradleak.client.gradient_checks import check_gradient
from gradleak.errors import ConfigError
from gradleak.library.network import as_tensor, read_network
from gradleak.library.tensors import image_batch, label_batch
from gradleak.reading.gradients import gradient


def capture(
    model: nn.Module,
    images: Any,
    labels: Any,
    *,
    loss: str = "cross_entropy",
    mode: str = "training",
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Gradient of the mean loss over a batch, ∂/∂W (1/K) Σ_k ℓ(f(x_k), y_k), by parameter.

    What a client of FedSGD shares: one step, no defence. The network is not modified.

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
    seed
        Of dropout.

    Returns
    -------
    dict
        A tensor of each parameter's shape by its name.

    Raises
    ------
    GradleakError
        In one sentence, if network, images and labels do not fit together, or the gradient is
        zero or not finite.

    Notes
    -----
    R-GAP section 3 and COPA section 2 attack K = 1; R-GAP section 4.4 and MKOR batches.
    """
    shape = getattr(images, "shape", ())
    if len(shape) != 4:
        raise ConfigError("images: give a batch (K, C, H, W), as a tensor or an array.")
    network = read_network(model, shape[1:], loss=loss, mode=mode)
    batch = image_batch(images, network)
    truth = label_batch(labels, network, len(batch))
    # Dropout must not advance the global random state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = gradient(network.module, batch, truth, loss, mode)
    check_gradient(network.attacked, found)
    return {name: as_tensor(value, network.module) for name, value in found.items()}
