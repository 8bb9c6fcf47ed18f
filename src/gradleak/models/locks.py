"""The key-lock: scale and shift of a batch norm from a client's private key (FedKL eq. 37)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from gradleak.models.activations import Activation

# Suffixes of the names of a lock's parameters and its key.
SCALE, SHIFT, KEY = "_lock_scale", "_lock_shift", "_key"

Value = TypeVar("Value")


@dataclass(frozen=True)
class Lock:
    """Scale γ = a(W_γ k + b_γ) and shift β = a(W_β k + b_β) of a normalised convolution."""

    key: int  # S, the number of values of the key k, each in [0, 1)
    # a; FedKL's authors take ReLU, and Sigmoid in their tests of leakage; eq. (37) has none.
    activation: Activation

    def parameters(self, filters: int) -> int:
        """Number of weights and biases of both fully connected layers, 2 O (S + 1)."""
        return 2 * filters * (self.key + 1)


@dataclass(frozen=True)
class Locked:
    """A convolution with a `lock`: the `name` of its parameters, and its number of `filters`."""

    name: str
    filters: int
    lock: Lock


def names_of(layer: str) -> dict[str, str]:
    """Names of both fully connected layers of a convolution's lock, by their role."""
    return {"weight": f"{layer}{SCALE}", "bias": f"{layer}{SHIFT}"}


def is_key(name: str) -> bool:
    """True if an array of this name is a key."""
    return "." not in name and name.endswith(KEY)


def is_private(name: str) -> bool:
    """True if an array of this name never leaves a client: its key, or its lock's parameters."""
    return name.split(".")[0].endswith((SCALE, SHIFT)) or is_key(name)


def public(arrays: Mapping[str, Value]) -> dict[str, Value]:
    """Select the arrays that a client shares."""
    return {name: value for name, value in arrays.items() if not is_private(name)}


def private(arrays: Mapping[str, Value]) -> dict[str, Value]:
    """Select the arrays that a client keeps."""
    return {name: value for name, value in arrays.items() if is_private(name)}
