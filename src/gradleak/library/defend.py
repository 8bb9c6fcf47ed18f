"""`gradleak.defend`: a gradient as a defended client shares it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from gradleak.client.defences.base import Client, Defence, build
from gradleak.errors import ConfigError
from gradleak.library.network import as_tensor, read_network
from gradleak.library.tensors import Gradient, image_batch, label_batch, named_gradient
from gradleak.models.chain import Chain
from gradleak.settings import registry
from gradleak.settings.validation_messages import nearest, sentence

# Defences that look at the client's images.
OF_IMAGES = ("soteria",)
DEFENCES = ("gaussian_noise", "clipping", *OF_IMAGES)


def defend(
    gradient: Gradient,
    model: nn.Module,
    defence: str = "gaussian_noise",
    *,
    images: Any = None,
    labels: Any = None,
    loss: str = "cross_entropy",
    seed: int = 0,
    **settings: Any,
) -> dict[str, torch.Tensor]:
    """Change a gradient before it is shared.

    Parameters
    ----------
    gradient, model
        As in `gradleak.invert`.
    defence
        ``gaussian_noise`` with ``level``, a share of each tensor's standard deviation (or, with
        ``relative=False``, the deviation itself); ``clipping`` to ``norm``, of all parameters
        together; ``soteria`` (MKOR section 4), which prunes what the first fully connected layer
        would reveal of `images`.
    images, labels, loss
        The client's batch, for Soteria alone; as in `gradleak.capture`.
    seed
        Of noise.
    settings
        Of the defence, as in an entry of ``defences`` in ``papers/*/paper.yaml``.

    Returns
    -------
    dict
        A tensor of each parameter's shape by its name.

    Raises
    ------
    GradleakError
        In one sentence, if gradient, network and defence do not fit together.
    """
    if defence not in DEFENCES:
        choices = ", ".join(DEFENCES)
        raise ConfigError(
            f"defence: {defence!r} is not known{nearest(str(defence), DEFENCES)}; choose one of "
            f"{choices}."
        )
    try:
        chosen = build({"method": defence, **settings})
    except ValidationError as error:
        kind = registry.class_of("defences", defence)
        raise ConfigError(f"{defence}: {sentence(error, kind)}") from error
    shared = named_gradient(gradient, model)
    if defence not in OF_IMAGES:
        nobody = Client(Chain(type(model).__name__, (1, 1, 1), ()), {}, np.empty(0), np.empty(0))
        found = chosen.apply(nobody, shared, seed)
    else:
        found = _of_images(chosen, shared, model, images, labels, loss, seed)
    return {name: as_tensor(value, model) for name, value in found.items()}


def _of_images(
    defence: Defence,
    shared: dict[str, np.ndarray],
    model: nn.Module,
    images: Any,
    labels: Any,
    loss: str,
    seed: int,
) -> dict[str, np.ndarray]:
    """Apply a defence that needs the batch, by names and shapes of the chain."""
    if images is None or labels is None:
        raise ConfigError("images, labels: soteria looks at the client's batch; give both.")
    if len(shape := getattr(images, "shape", ())) != 4:
        raise ConfigError("images: give a batch (K, C, H, W), as a tensor or an array.")
    network = read_network(model, shape[1:], loss=loss, mode="evaluation")
    chain, batch = network.chain, image_batch(images, network)
    truth = label_batch(labels, network, len(batch))
    assert network.converted is not None
    before, names = network.converted.before, network.converted.names
    inputs = batch if before is None else before(batch)
    owner = Client(chain, network.weights, inputs, truth)
    found = defence.apply(owner, network.arrays(shared), seed)
    return {names[own]: value.reshape(shared[names[own]].shape) for own, value in found.items()}
