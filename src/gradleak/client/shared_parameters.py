"""Part of its lock that a client of a locked network shares (FedKL section IV-E)."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from gradleak.errors import ConfigError
from gradleak.models.chain import Chain
from gradleak.models.locks import is_key, private, public

# Nothing; the key; the gradient of the lock's weights; or both.
LOCK = ("withheld", "key", "gradient", "both")


class Private(Protocol):
    """Keys and lock weights of one client."""

    def of(self, chain: Chain, seed: int) -> dict[str, np.ndarray]:
        """Keys and lock weights of a network for one seed."""


def own_lock(chain: Chain, seed: int, client: Private | None) -> dict[str, np.ndarray]:
    """Key and lock weights of a client, empty without a lock; `ConfigError` without a client."""
    if not chain.locked:
        return {}
    if client is None:
        raise ConfigError(
            f"{chain.name} is locked, but no client is given to run it; give one that has a key."
        )
    return client.of(chain, seed)


def of_lock(
    gradients: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray], lock: str
) -> dict[str, np.ndarray]:
    """Gradients as shared: without the lock's, but with the part that `lock` (of `LOCK`) grants.

    `gradients` are of all parameters, `own` the client's key and lock weights. Lock weights are
    never shared.
    """
    if lock not in LOCK:
        raise ConfigError(f"lock: '{lock}' is not known; choose one of {', '.join(LOCK)}.")
    slopes = private(gradients) if lock in ("gradient", "both") else {}
    keys = {name: v for name, v in own.items() if lock in ("key", "both") and is_key(name)}
    return public(gradients) | slopes | keys
