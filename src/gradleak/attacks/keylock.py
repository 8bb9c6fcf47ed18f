"""Attacker's substitutes for a client's key-lock (FedKL sections III-B, IV-E)."""

from dataclasses import dataclass

import numpy as np

from gradleak.attacks.base import Arrays, AttackerView
from gradleak.models.build import check_keys
from gradleak.models.chain import Chain
from gradleak.models.locks import KEY, Locked, is_private, names_of, public


@dataclass(frozen=True)
class Opening:
    """A locked network as the attacker runs it."""

    # The server's weights, with a key beside the lock weights or with γ and β, named as parameters
    # of a batch norm, in place of both.
    weights: dict[str, np.ndarray]
    shared: dict[str, np.ndarray]  # gradients that the attacker can compute and so compare
    # γ and β of locked layers, concatenated (S, 2 Σ O), as starting points of their fit; None where
    # they follow from the key.
    scaling: np.ndarray | None = None
    # The lock's gradient is compared under a drawn key, which is not the client's: no image matches
    # it, so that the distance cannot fall to 0, and an image's gain is small beside the rest.
    mismatched: bool = False


def open_lock(view: AttackerView, mode: str, seed: int, starts: int = 1) -> Opening:
    """Run a locked network without the client's lock; a granted key is used.

    ``guess``: without one, draw a random key and use the lock weights that the server sent.
    ``fit``: compute the key from the lock's gradient where that was shared (see `key_of`); else fit
    γ and β from `starts` starting points, those of random keys. The lock's gradient is not compared
    then: it is the gradient in γ and β times a long key, and drowns the others.

    Raises `ConfigError` if the length of a granted key is not the lock's.
    """
    chain, shared = view.chain, dict(view.gradients)
    if not chain.locked:
        return Opening(dict(view.weights), shared)
    keys = dict(view.keys)
    if mode == "fit":
        if not keys:
            found = {layer.name: key_of(layer, shared) for layer in chain.locked}
            keys = {f"{name}{KEY}": key for name, key in found.items() if key is not None}
        shared = public(shared)
        if len(keys) < len(chain.locked):
            own = [_scaling(chain, view.weights, _own(chain, seed, i)) for i in range(starts)]
            return Opening(_without_lock(chain, view.weights, own[0]), shared, np.stack(own))
    weights = {**view.weights, **(keys or _own(chain, seed, 0))}
    check_keys(chain, weights)
    return Opening(weights, shared, mismatched=not keys and any(map(is_private, shared)))


def key_of(layer: Locked, shared: Arrays) -> np.ndarray | None:
    """Return the key of a locked layer from its lock's gradient; None where that was not shared.

    ∂ℓ/∂W = ∂ℓ/∂b kᵀ has rank one (FedKL eqs. 34, 35), so k = Σ_o b_o W_o / Σ_o b_o² over the rows
    of both gradients. Also None where these are zero.
    """
    if f"{layer.name}_lock_scale.weight" not in shared:
        return None
    names = names_of(layer.name).values()
    rows = np.concatenate([shared[f"{name}.weight"] for name in names]).astype(np.float64)
    biases = np.concatenate([shared[f"{name}.bias"] for name in names]).astype(np.float64)
    square = float(biases @ biases)
    return biases @ rows / square if square > 0.0 else None


def _own(chain: Chain, seed: int, start: int) -> dict[str, np.ndarray]:
    """Draw the attacker's keys, uniform in [0, 1)."""
    draw = np.random.default_rng((seed, start, *b"key"))
    return {f"{layer.name}{KEY}": draw.random(layer.lock.key) for layer in chain.locked}


def _scaling(chain: Chain, weights: Arrays, keys: Arrays) -> np.ndarray:
    """Return γ and β of locked layers (2 Σ O) from lock weights and keys."""
    out = []
    for layer in chain.locked:
        for name in names_of(layer.name).values():
            before = weights[f"{name}.weight"] @ keys[f"{layer.name}{KEY}"]
            out.append(layer.lock.activation.forward(before + weights[f"{name}.bias"]))
    return np.concatenate(out)


def _without_lock(chain: Chain, weights: Arrays, scaling: np.ndarray) -> dict[str, np.ndarray]:
    parts = [(layer, kind) for layer in chain.locked for kind in ("weight", "bias")]
    values = np.split(scaling, np.cumsum([layer.filters for layer, _ in parts])[:-1])
    names = [f"{layer.name}_norm.{kind}" for layer, kind in parts]
    return public(weights) | dict(zip(names, values, strict=True))
