"""Initial weights of chains, drawn without PyTorch."""

from collections.abc import Iterable, Iterator

import numpy as np

from gradleak.models.chain import Chain, ConvPart, LinearLayer
from gradleak.models.locks import KEY, Locked, names_of

# Names of the random streams of lock weights and keys, beside the seed. Words, since NumPy pads
# short seeds with zeros: small numbers would repeat the streams of attacks and training runs.
LOCKS, KEYS = b"locks", b"keys"


def _parts(chain: Chain) -> Iterator[ConvPart | LinearLayer]:
    """Convolutions, then fully connected layers, in the order in which they are drawn."""
    yield from chain.parts
    yield from (layer for layer in chain.layers if isinstance(layer, LinearLayer))


def _is_scaled(part: ConvPart | LinearLayer) -> bool:
    """True if a batch norm with scale and shift of its own follows."""
    return isinstance(part, ConvPart) and part.normed and part.lock is None


def initial_weights(chain: Chain, seed: int) -> dict[str, np.ndarray]:
    """Draw float32 weights of `chain` under one seed: uniform in ±1/sqrt(fan_in), biases too.

    This is PyTorch's default for convolutions and linear layers, and the "uniform distribution"
    of COPA section 3. A chain's `spread` replaces the limit, a layer's `gain` multiplies its
    weights. NumPy draws them, so that a seed gives the same bits in every version of PyTorch.
    """
    generator = np.random.default_rng(seed)
    out: dict[str, np.ndarray] = {}
    for part in _parts(chain):
        limit = chain.spread or 1.0 / np.sqrt(np.prod(part.size[1:]))
        weight = part.gain * generator.uniform(-limit, limit, part.size)
        out[f"{part.name}.weight"] = weight.astype(np.float32)
        if _is_scaled(part):
            out[f"{part.name}_norm.weight"] = np.ones(part.size[0], np.float32)
            out[f"{part.name}_norm.bias"] = np.zeros(part.size[0], np.float32)
        if part.bias:
            drawn = generator.uniform(-limit, limit, part.size[0])
            out[f"{part.name}.bias"] = drawn.astype(np.float32)
    return out | _locks(chain, seed)


def _lock_shapes(layer: Locked) -> dict[str, tuple[int, ...]]:
    kinds = {"weight": (layer.filters, layer.lock.key), "bias": (layer.filters,)}
    names = names_of(layer.name).values()
    return {f"{name}.{kind}": size for name in names for kind, size in kinds.items()}


def _locks(chain: Chain, seed: int) -> dict[str, np.ndarray]:
    """Draw the lock weights that the server initialises its clients with: uniform in ±1/sqrt(S).

    They have a separate generator, so that a network has the same other weights with and without
    a lock, and ignore `spread`: keys are long, and would saturate the lock's activation.
    """
    generator = np.random.default_rng((seed, *LOCKS))
    out = {}
    for layer in chain.locked:
        limit = 1.0 / np.sqrt(layer.lock.key)
        for name, size in _lock_shapes(layer).items():
            out[name] = generator.uniform(-limit, limit, size).astype(np.float32)
    return out


def parameter_shapes(chain: Chain) -> dict[str, tuple[int, ...]]:
    """Shape of each array that `initial_weights` draws for a chain."""
    out: dict[str, tuple[int, ...]] = {}
    for part in _parts(chain):
        out[f"{part.name}.weight"] = part.size
        ones = [f"{part.name}.bias"] if part.bias else []
        if _is_scaled(part):
            ones += [f"{part.name}_norm.weight", f"{part.name}_norm.bias"]
        out |= dict.fromkeys(ones, part.size[:1])
    for layer in chain.locked:
        out |= _lock_shapes(layer)
    return out


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
