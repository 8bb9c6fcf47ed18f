"""A PyTorch network of yours as clients run it and attackers see it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.errors import ConfigError, NotApplicable
from gradleak.models.build import ChainModule
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.locks import is_key
from gradleak.models.losses import LOSSES
from gradleak.reading.conversion import Converted, convert
from gradleak.reading.fx_graph import Reading, outputs, read
from gradleak.reading.gradients import MODES, check_loss, check_training
from gradleak.reading.layer_names import told
from gradleak.reading.model_checks import Size, own_copy

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class OwnNetwork:
    """A copy of a network, and what could be read of it."""

    module: nn.Module
    size: Size  # (C, H, W) of one image
    classes: int
    loss: str
    mode: str
    reading: Reading | None  # None if torch.fx cannot trace it
    converted: Converted | None  # the chain that it equals, if it is one
    why_no_chain: str  # one sentence; empty if it is a chain

    @property
    def name(self) -> str:
        """Name of its class."""
        return type(self.module).__name__

    @property
    def attacked(self) -> Chain:
        """The chain that attackers run: without dropout, whose mask they do not know.

        A network that is no chain gives one without layers, which has a name and a size.
        """
        if self.converted is None:
            return Chain(self.name, self.size, ())
        chain = self.converted.chain
        specs = (replace(s, dropout=0.0) if isinstance(s, LinearSpec) else s for s in chain.specs)
        return replace(chain, specs=tuple(specs))

    @property
    def traced(self) -> Reading:
        """Its layers; `ConfigError` if they could not be traced."""
        if self.reading is None:
            raise ConfigError(self.why_no_chain or f"{self.name} is locked, and has no trace.")
        return self.reading

    @property
    def chain(self) -> Chain:
        """The chain that it equals; `NotApplicable` if it is none."""
        if self.converted is None:
            raise NotApplicable(f"{self.name} is not a chain of layers: {self.why_no_chain}")
        return self.converted.chain

    def told(self, reason: str) -> str:
        """Replace a chain's layer names in a reason by those of the network."""
        if self.converted is None:
            return reason
        return told(reason, self.converted.chain, self.converted.layers)

    def arrays(self, values: Mapping[str, np.ndarray]) -> Arrays:
        """Values by parameter of the network, renamed for the chain if it is one."""
        return dict(values) if self.converted is None else self.converted.arrays(values)

    @property
    def weights(self) -> Arrays:
        """Parameters and running statistics, renamed for the chain if it is one."""
        state = self.module.state_dict()
        return self.arrays({name: value.detach().cpu().numpy() for name, value in state.items()})


def read_network(
    model: nn.Module, input_shape: Sequence[int], *, loss: str, mode: str
) -> OwnNetwork:
    """Copy and read a network, which is not modified.

    Raises `ConfigError` if it cannot be differentiated, does not take images of this shape, or
    does not fit the loss. A network that is no chain, or that torch.fx cannot trace, is no error.
    """
    size = image_shape(input_shape)
    for key, value, known in (("loss", loss, LOSSES), ("mode", mode, MODES)):
        if value not in known:
            choices = ", ".join(known)
            raise ConfigError(f"{key}: {value!r} is not known; choose one of {choices}.")
    module, _ = own_copy(model)
    classes = outputs(module, size)
    check_loss(loss, classes)
    if mode == "training":
        check_training(module, size, classes)
    if isinstance(model, ChainModule) and model.chain.locked:
        return _own_chain(model, module, classes, loss, mode)
    reading, converted, why = None, None, ""
    try:
        reading = read(module, size)
        converted = convert(reading, module, type(module).__name__, loss)
    except (ConfigError, NotApplicable) as error:
        why = str(error)
    return OwnNetwork(module, size, classes, loss, mode, reading, converted, why)


def _own_chain(
    model: ChainModule, module: nn.Module, classes: int, loss: str, mode: str
) -> OwnNetwork:
    """A network of gradleak's own, whose locks no tracer would find."""
    chain = model.chain
    # The client's key is a buffer, which no attacker has.
    names = {name: name for name in module.state_dict() if not _is_hidden(name)}
    converted = Converted(chain, names, tuple(layer.name for layer in chain.layers))
    return OwnNetwork(module, chain.input, classes, loss, mode, None, converted, "")


def _is_hidden(name: str) -> bool:
    return is_key(name) or name.endswith("batches_tracked")


def image_shape(input_shape: Any) -> Size:
    """Return (C, H, W) as three whole numbers above 0; `ConfigError` for anything else."""
    try:
        channels, height, width = (operator.index(side) for side in input_shape)
        if min(channels, height, width) < 1:
            raise ValueError("not above 0")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "input_shape: give (C, H, W) of one image, three whole numbers above 0, not "
            f"{input_shape!r}."
        ) from error
    return channels, height, width


def as_tensor(values: np.ndarray, module: nn.Module) -> torch.Tensor:
    """Return an array as a tensor with type and device of the network's parameters."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(next(module.parameters()))
