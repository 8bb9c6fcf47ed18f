"""Initial weights of chains, drawn without PyTorch."""

from collections.abc import Iterable, Iterator

import numpy as np

from gradleak.models.chain import Chain, ConvPart, LinearLayer
from gradleak.models.locks import KEY, is_private, names_of

# Names of the random streams of lock weights and keys, beside the seed. Words, since NumPy pads
# short seeds with zeros: small numbers would repeat the streams of attacks and training runs.
LOCKS, KEYS = b"locks", b"keys"


def _arrays(chain: Chain) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
    """Name, shape, limit and gain of each array in the order of draws; all are gain at limit 0."""
    parts: list[ConvPart | LinearLayer] = [*chain.parts]
    for part in parts + [layer for layer in chain.layers if isinstance(layer, LinearLayer)]:
        name, limit = part.name, chain.spread or 1.0 / np.sqrt(np.prod(part.size[1:]))
        yield f"{name}.weight", part.size, limit, part.gain
        if isinstance(part, ConvPart) and part.normed and part.lock is None:
            yield f"{name}_norm.weight", part.size[:1], 0.0, 1.0
            yield f"{name}_norm.bias", part.size[:1], 0.0, 0.0
        if part.bias:
            yield f"{name}.bias", part.size[:1], limit, 1.0
    # They ignore `spread`: keys are long, and would saturate the lock's activation.
    for layer in chain.locked:
        limit = 1.0 / np.sqrt(layer.lock.key)
        for name in names_of(layer.name).values():
            yield f"{name}.weight", (layer.filters, layer.lock.key), limit, 1.0
            yield f"{name}.bias", (layer.filters,), limit, 1.0


def initial_weights(chain: Chain, seed: int) -> dict[str, np.ndarray]:
    """Draw float32 weights of `chain` under one seed: uniform in ±1/sqrt(fan_in), biases too.

    This is PyTorch's default for convolutions and linear layers, and the "uniform distribution"
    of COPA section 3. A chain's `spread` replaces the limit, a layer's `gain` multiplies its
    weights; lock weights, which the server initialises its clients with, are in ±1/sqrt(S). NumPy
    draws them, so that a seed gives the same bits in every version of PyTorch.
    """
    # Two generators, so that a network has the same other weights with and without a lock.
    others, locks = np.random.default_rng(seed), np.random.default_rng((seed, *LOCKS))
    out = {}
    for name, shape, limit, gain in _arrays(chain):
        generator = locks if is_private(name) else others
        drawn = generator.uniform(-limit, limit, shape) if limit else np.ones(shape)
        out[name] = (gain * drawn).astype(np.float32)
    return out


def parameter_shapes(chain: Chain) -> dict[str, tuple[int, ...]]:
    """Shape of each array that `initial_weights` draws for a chain."""
    return {name: shape for name, shape, *_ in _arrays(chain)}


def draw_key(chain: Chain, client: int, seed: int) -> dict[str, np.ndarray]:
    """Draw the private keys ``{layer}_key`` (S,) of one client: uniform in [0, 1) (FedKL IV-A)."""
    generator = np.random.default_rng((seed, *KEYS, client))
    # In float32, to stay below 1 there as well.
    return {
        f"{layer.name}{KEY}": generator.random(layer.lock.key, np.float32) for layer in chain.locked
    }


def family_weights(chains: Iterable[Chain], seeds: int) -> dict[str, np.ndarray]:
    """Draw weights (seeds, ...) of chains under seeds 0 ... seeds − 1, ``{chain}/{parameter}``."""
    out = {}
    for chain in chains:
        draws = [initial_weights(chain, seed) for seed in range(seeds)]
        for name in draws[0]:
            out[f"{chain.name}/{name}"] = np.stack([draw[name] for draw in draws])
    return out
