"""Initial weights of chains, drawn without PyTorch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradleak.models.chain import Chain, LinearLayer
from gradleak.models.locks import KEY, names_of
from gradleak.models.parts import ConvPart

# Names of the random streams of lock weights and keys, beside the seed. Words, since NumPy pads
# short seeds with zeros: small numbers would repeat the streams of attacks and training runs.
LOCKS, KEYS = b"locks", b"keys"


def initial_weights(chain: Chain, seed: int) -> dict[str, np.ndarray]:
    """Draw float32 weights of `chain` under one seed: uniform in ±1/sqrt(fan_in), biases too.

    This is PyTorch's default for convolutions and linear layers, and the "uniform distribution"
    of COPA section 3. A chain's `spread` replaces the limit, a layer's `gain` multiplies its
    weights. NumPy draws them, so that a seed gives the same bits in every version of PyTorch.
    """
    generator = np.random.default_rng(seed)
    out: dict[str, np.ndarray] = {}
    parts: list[ConvPart | LinearLayer] = [*chain.parts]
    parts += [layer for layer in chain.layers if isinstance(layer, LinearLayer)]
    for part in parts:
        if isinstance(part, ConvPart):
            shape = part.shape
            size: tuple[int, ...] = (shape.filters, shape.channels, *shape.kernel)
        else:
            size = (part.outputs, part.inputs)
        limit = chain.spread or 1.0 / np.sqrt(np.prod(size[1:]))
        weight = part.gain * generator.uniform(-limit, limit, size)
        out[f"{part.name}.weight"] = weight.astype(np.float32)
        if isinstance(part, ConvPart) and part.normed and part.lock is None:
            out[f"{part.norm}.weight"] = np.ones(size[0], np.float32)
            out[f"{part.norm}.bias"] = np.zeros(size[0], np.float32)
        if part.bias:
            out[f"{part.name}.bias"] = generator.uniform(-limit, limit, size[0]).astype(np.float32)
    return out | _locks(chain, seed)


def _locks(chain: Chain, seed: int) -> dict[str, np.ndarray]:
    """Draw the lock weights that the server initialises its clients with: uniform in ±1/sqrt(S).

    They have a separate generator, so that a network has the same other weights with and without
    a lock, and ignore `spread`: keys are long, and would saturate the lock's activation.
    """
    generator = np.random.default_rng((seed, *LOCKS))
    out = {}
    for layer in chain.locked:
        limit = 1.0 / np.sqrt(layer.lock.key)
        for name in names_of(layer.name).values():
            for part, size in (("weight", (layer.filters, layer.lock.key)), ("bias", None)):
                values = generator.uniform(-limit, limit, size or layer.filters)
                out[f"{name}.{part}"] = values.astype(np.float32)
    return out


def parameter_shapes(chain: Chain) -> dict[str, tuple[int, ...]]:
    """Shape of each array that `initial_weights` draws for a chain."""
    out: dict[str, tuple[int, ...]] = {}
    for part in chain.parts:
        shape = part.shape
        out[f"{part.name}.weight"] = (shape.filters, shape.channels, *shape.kernel)
        if part.bias:
            out[f"{part.name}.bias"] = (shape.filters,)
        if part.normed and part.lock is None:
            out |= dict.fromkeys((f"{part.norm}.weight", f"{part.norm}.bias"), (shape.filters,))
    for layer in chain.layers:
        if isinstance(layer, LinearLayer):
            out[f"{layer.name}.weight"] = (layer.outputs, layer.inputs)
            if layer.bias:
                out[f"{layer.name}.bias"] = (layer.outputs,)
    for locked in chain.locked:
        for name in names_of(locked.name).values():
            out[f"{name}.weight"] = (locked.filters, locked.lock.key)
            out[f"{name}.bias"] = (locked.filters,)
    return out


def draw_key(chain: Chain, client: int, seed: int) -> dict[str, np.ndarray]:
    """Draw the private keys ``{layer}_key`` (S,) of one client: uniform in [0, 1) (FedKL IV-A)."""
    generator = np.random.default_rng((seed, *KEYS, client))
    out = {}
    for layer in chain.locked:
        # Below 1 in float32 as well.
        values = generator.random(layer.lock.key, np.float32)
        out[f"{layer.name}{KEY}"] = values
    return out


def family_weights(chains: Iterable[Chain], seeds: int) -> dict[str, np.ndarray]:
    """Draw weights of several chains under seeds 0 ... seeds − 1, keyed ``{chain}/{parameter}``.

    Each array has the seeds as its first dimension.
    """
    out = {}
    for chain in chains:
        draws = [initial_weights(chain, seed) for seed in range(seeds)]
        for name in draws[0]:
            out[f"{chain.name}/{name}"] = np.stack([draw[name] for draw in draws])
    return out
