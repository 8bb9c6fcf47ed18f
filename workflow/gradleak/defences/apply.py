"""Defences on the gradients of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradleak.defences.base import Client, Defence
from gradleak.models.files import ModelFile, runs, select
from gradleak.targets import TargetSet


def defend_all(
    models: ModelFile,
    targets: TargetSet,
    tensors: dict[str, np.ndarray],
    metadata: Mapping[str, Any],
    defence: Defence,
) -> None:
    """Put what a defence makes of each gradient in its place.

    Parameters
    ----------
    models, targets
        What the gradients were taken of.
    tensors, metadata
        What `capture_all` gave; `tensors` is changed.
    defence
        The defence.
    """
    broken = {(entry["chain"], entry["seed"], entry["batch"]) for entry in metadata["unusable"]}
    for chain, seed, batch in runs(models.chains, metadata["seeds"], metadata["images"]):
        if (chain.name, seed, batch) in broken:
            continue
        shared = select(tensors, chain.name, seed, batch)
        known = {key: shared.pop(key) for key in ("label", "class") if key in shared}
        true = known.get("label", targets.labels[batch])
        client = Client(chain, models.of(chain, seed), targets.batch(batch), true)
        for name, value in defence.apply(client, shared, noise_seed(seed, batch)).items():
            tensors[f"{chain.name}/{name}"][seed, batch] = value


def noise_seed(seed: int, batch: int) -> int:
    """Seed of a defence's randomness: another for each draw of weights and each batch."""
    return 7_368_787 + 100_003 * seed + batch
