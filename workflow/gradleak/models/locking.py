"""Any network, with some of its convolutions locked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradleak.errors import ConfigError
from gradleak.models.chain import ConvSpec, LinearSpec
from gradleak.models.locks import Lock


def with_lock(
    specs: Sequence[ConvSpec | LinearSpec], layers: Sequence[str], lock: Lock
) -> tuple[ConvSpec | LinearSpec, ...]:
    """Layers of a network, those named behind a norm whose scale and shift come from a key.

    A norm that a convolution had before gives way; without one it gets one (FedKL Figure 2).

    Parameters
    ----------
    specs
        Layers from first to last.
    layers
        Names of convolutions, ``conv1`` for the first.
    lock
        Of each of them, with weights and a key of its own.

    Raises
    ------
    ConfigError
        If a name is none of a convolution.
    """
    known = [f"conv{number}" for number, spec in enumerate(specs, 1) if isinstance(spec, ConvSpec)]
    for name in layers:
        if name not in known:
            what = f"conv1 to {known[-1]}" if known else "none"
            raise ConfigError(f"lock.layers: {name} is no convolution here; there are {what}.")
    return tuple(
        replace(spec, norm="batch", lock=lock)
        if isinstance(spec, ConvSpec) and f"conv{number}" in layers
        else spec
        for number, spec in enumerate(specs, 1)
    )
