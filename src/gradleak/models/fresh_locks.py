"""Lock weights of a stranger: drawn as a server draws them, from a random stream of their own."""

import numpy as np

from gradleak.models.chain import Chain
from gradleak.models.locks import names_of


def draw_lock(chain: Chain, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw float32 weights and biases of all locks of `chain`, uniform in ±1/sqrt(S).

    That is the distribution of `gradleak.models.initial.initial_weights`. Whoever draws with
    another generator than the server's has a lock that is independent of any client's.
    """
    drawn: dict[str, np.ndarray] = {}
    for layer in chain.locked:
        limit = 1.0 / np.sqrt(layer.lock.key)
        for name in names_of(layer.name).values():
            weight = generator.uniform(-limit, limit, (layer.filters, layer.lock.key))
            bias = generator.uniform(-limit, limit, layer.filters)
            drawn |= {f"{name}.weight": weight, f"{name}.bias": bias}
    return {name: value.astype(np.float32) for name, value in drawn.items()}
