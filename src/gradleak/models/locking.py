"""Key-locks for convolutions of any network."""

from collections.abc import Sequence
from dataclasses import replace

from gradleak.errors import ConfigError
from gradleak.models.chain import SKIP, ConvSpec, LinearSpec
from gradleak.models.locks import Lock


def with_lock(
    specs: Sequence[ConvSpec | LinearSpec], layers: Sequence[str], lock: Lock
) -> tuple[ConvSpec | LinearSpec, ...]:
    """Lock some convolutions of a network: scale and shift of their batch norm come from a key.

    A locked convolution loses its own batch norm; the lock brings one (FedKL Figure 2), and no
    other layer gets any. `layers` are names of convolutions, ``conv1`` for the first,
    ``conv8_skip`` for the projection of the skip that ends at the eighth; each gets weights and key
    of its own. Raises `ConfigError` if a name is not that of a convolution.
    """
    named = {f"conv{n}": spec for n, spec in enumerate(specs, 1) if isinstance(spec, ConvSpec)}
    own, skips = list(named), [f"{name}{SKIP}" for name, spec in named.items() if spec.projection]
    for name in layers:
        if name not in own + skips:
            raise ConfigError(
                f"lock.layers: {name} is not a convolution here; there are {_listed(own, skips)}."
            )
    for name, spec in named.items():
        if name in layers:
            # `norm` would add one behind a projection too, which a lock does not need.
            norm = spec.norm if spec.projection else "batch"
            named[name] = replace(spec, norm=norm, lock=lock)
        if f"{name}{SKIP}" in layers:
            named[name] = replace(named[name], skip_lock=lock)
    return tuple(named.get(f"conv{number}", spec) for number, spec in enumerate(specs, 1))


def _listed(own: Sequence[str], skips: Sequence[str]) -> str:
    *others, last = f"conv1 to {own[-1]}" if own else "none", *skips
    return f"{', '.join(others)} and {last}" if others else last
