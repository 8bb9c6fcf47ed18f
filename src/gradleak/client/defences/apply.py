"""Defences on the gradients of a file."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradleak.client.defences.base import Client, Defence
from gradleak.client.shared_parameters import Private, own_lock
from gradleak.data.targets import TargetSet
from gradleak.models.files import ModelFile, runs, select
from gradleak.models.locks import is_key
from gradleak.runtime.progress import progress

# Entries of a gradient file that are not gradients; nor is a lock's key.
TOLD = ("label", "class")


def defend_all(
    models: ModelFile,
    targets: TargetSet,
    tensors: dict[str, np.ndarray],
    metadata: Mapping[str, Any],
    defence: Defence,
    client: Private | None = None,
) -> None:
    """Replace each gradient in `tensors`, from `capture_all`, by its defended version.

    `models` and `targets` are the networks and images of the gradients; `client` holds key and lock
    weights of locked networks.
    """
    broken = {(entry["chain"], entry["seed"], entry["batch"]) for entry in metadata["unusable"]}
    todo = list(runs(models.chains, metadata["seeds"], metadata["images"]))
    for chain, seed, batch in progress(todo, "gradients"):
        if (chain.name, seed, batch) in broken:
            continue
        shared = select(tensors, chain.name, seed, batch)
        known = {key: shared.pop(key) for key in list(shared) if key in TOLD or is_key(key)}
        true = known.get("label", targets.labels[batch])
        weights = models.of(chain, seed) | own_lock(chain, seed, client)
        sharing = Client(chain, weights, targets.batch(batch), true)
        for name, value in defence.apply(sharing, shared, noise_seed(seed, batch)).items():
            tensors[f"{chain.name}/{name}"][seed, batch] = value


def noise_seed(seed: int, batch: int) -> int:
    """Seed of a defence's randomness, distinct for each initialization and batch."""
    return 7_368_787 + 100_003 * seed + batch
