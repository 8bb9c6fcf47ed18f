"""Initial weights of chains, drawn without PyTorch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradleak.models.chain import Chain, ConvLayer
from gradleak.models.locks import KEY, names_of

# What lock weights and keys are drawn by, beside the seed. Words, as NumPy pads short seeds with
# zeros and would give small numbers the streams that searches and trainings draw by.
LOCKS, KEYS = b"locks", b"keys"


def initial_weights(chain: Chain, seed: int) -> dict[str, np.ndarray]:
    """Float32 weights of `chain` under one seed: uniform in ±1/sqrt(fan_in), biases too.

    That is PyTorch's default for convolutions and linear layers, and the "uniform distribution"
    of COPA section 3. A chain's `spread` replaces the limit, a layer's `gain` multiplies its
    weights. NumPy draws them, so that the same seed gives the same bits whatever the version of
    PyTorch.
    """
    generator = np.random.default_rng(seed)
    out: dict[str, np.ndarray] = {}
    for layer in chain.layers:
        if isinstance(layer, ConvLayer):
            size: tuple[int, ...] = (
                layer.shape.filters,
                layer.shape.channels,
                *layer.shape.kernel,
            )
        else:
            size = (layer.outputs, layer.inputs)
        limit = chain.spread or 1.0 / np.sqrt(np.prod(size[1:]))
        weight = layer.gain * generator.uniform(-limit, limit, size)
        out[f"{layer.name}.weight"] = weight.astype(np.float32)
        if isinstance(layer, ConvLayer) and layer.norm != "none" and layer.lock is None:
            out[f"{layer.name}_norm.weight"] = np.ones(layer.shape.filters, np.float32)
            out[f"{layer.name}_norm.bias"] = np.zeros(layer.shape.filters, np.float32)
        if layer.bias:
            out[f"{layer.name}.bias"] = generator.uniform(-limit, limit, size[0]).astype(np.float32)
        if isinstance(layer, ConvLayer) and layer.projection is not None:
            out |= _projection(layer, chain.spread, generator)
    return out | _locks(chain, seed)


def _locks(chain: Chain, seed: int) -> dict[str, np.ndarray]:
    """Lock weights that the server starts its clients with: uniform in ±1/sqrt(S).

    They have a generator of their own, so that a network has the same other weights with a lock
    and without, and no `spread`: keys are long, and would saturate the lock's activation.
    """
    generator = np.random.default_rng((seed, *LOCKS))
    out = {}
    for layer in chain.locked:
        assert layer.lock is not None
        limit = 1.0 / np.sqrt(layer.lock.key)
        for name in names_of(layer.name).values():
            for part, size in (("weight", (layer.shape.filters, layer.lock.key)), ("bias", None)):
                values = generator.uniform(-limit, limit, size or layer.shape.filters)
                out[f"{name}.{part}"] = values.astype(np.float32)
    return out


def draw_key(chain: Chain, client: int, seed: int) -> dict[str, np.ndarray]:
    """Private keys ``{layer}_key`` (S,) of one client: uniform in [0, 1) (FedKL section IV-A)."""
    generator = np.random.default_rng((seed, *KEYS, client))
    out = {}
    for layer in chain.locked:
        assert layer.lock is not None
        # Below 1 in float32 as well.
        values = generator.random(layer.lock.key, np.float32)
        out[f"{layer.name}{KEY}"] = values
    return out


def _projection(
    layer: ConvLayer, spread: float | None, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Weights of the 1x1 convolution of a skip, and of its norm."""
    shape = layer.projection
    assert shape is not None
    limit = spread or 1.0 / np.sqrt(shape.channels)
    weight = generator.uniform(-limit, limit, (shape.filters, shape.channels, 1, 1))
    out = {f"{layer.name}_skip.weight": weight.astype(np.float32)}
    if layer.norm != "none":
        out[f"{layer.name}_skip_norm.weight"] = np.ones(shape.filters, np.float32)
        out[f"{layer.name}_skip_norm.bias"] = np.zeros(shape.filters, np.float32)
    return out


def family_weights(chains: Iterable[Chain], seeds: int) -> dict[str, np.ndarray]:
    """Weights of several chains under seeds 0 ... seeds − 1, keyed ``{chain}/{parameter}``.

    Each array has the seeds as its first dimension.
    """
    out = {}
    for chain in chains:
        draws = [initial_weights(chain, seed) for seed in range(seeds)]
        for name in draws[0]:
            out[f"{chain.name}/{name}"] = np.stack([draw[name] for draw in draws])
    return out
