"""`gradleak.poison`: weights that make a client's gradient leak, and the server's secret."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from gradleak.errors import ConfigError
from gradleak.library.network import read_network
from gradleak.models.files import fingerprint
from gradleak.servers.base import SEED, build
from gradleak.servers.mkor import options_for
from gradleak.servers.secret import Secret
from gradleak.settings import registry
from gradleak.settings.validation_messages import sentence


def poison(
    model: nn.Module, input_shape: Sequence[int], *, seed: int = 0, **settings: Any
) -> tuple[nn.Module, Secret]:
    """Return a copy of a network with MKOR's malicious weights, and the secret that reads them.

    A client that trains on the copy shares a gradient in which each class of the batch has rows of
    its own; ``gradleak.invert(…, attack="mkor", secret=secret)`` reads the mean image of each.

    Parameters
    ----------
    model, input_shape
        A chain of convolutions and fully connected layers, which is not modified, and (C, H, W) of
        one image in [0, 1].
    seed
        Of what the server draws.
    settings
        Of the server, as in an entry of ``servers`` in ``papers/mkor/paper.yaml``; by default, the
        classifier stays as it is.

    Raises
    ------
    NotApplicable, ConfigError
        If the network is no chain, or has no paths for MKOR; the message names the layer.

    Notes
    -----
    MKOR eq. 10 to 13 and 20.
    """
    network = read_network(model, input_shape, loss="cross_entropy", mode="evaluation")
    chain = network.chain
    assert network.converted is not None
    if network.converted.before is not None:
        raise ConfigError(
            f"{network.name} scales or shifts its image, but MKOR's paths carry values from 0 "
            "to 1; fold that into its first layer."
        )
    try:
        options = {**options_for(chain), **settings}
        server = build(options)
    except ValidationError as error:
        raise ConfigError(
            f"mkor: {sentence(error, registry.class_of('servers', 'mkor'))}"
        ) from error
    try:
        sent, values = server.corrupt(chain, network.weights, SEED + seed)
    except ConfigError as error:
        raise ConfigError(network.told(str(error))) from error
    out = copy.deepcopy(model)
    state = out.state_dict()
    with torch.no_grad():
        for own, name in network.converted.names.items():
            state[name].copy_(torch.from_numpy(sent[own]).reshape(state[name].shape))
    return out, Secret("mkor", fingerprint(sent), options, values)
