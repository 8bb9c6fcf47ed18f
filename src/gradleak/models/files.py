"""Model files: weights of all seeds of one model or family, with the architecture."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from gradleak.models.chain import Chain
from gradleak.models.initial import parameter_shapes
from gradleak.models.locks import is_private
from gradleak.runtime.artifacts import FLOATS, check_array, read_tensors, whole, write_tensors
from gradleak.runtime.metadata import Metadata


@dataclass(frozen=True)
class ModelFile:
    """Chains and their weights, ``{chain}/{parameter}`` -> (seeds, ...)."""

    chains: tuple[Chain, ...]
    weights: dict[str, np.ndarray]

    def of(self, chain: Chain, seed: int) -> dict[str, np.ndarray]:
        """Weights of one chain under one seed."""
        return select(self.weights, chain.name, seed)


def select(tensors: dict[str, np.ndarray], chain: str, *index: int) -> dict[str, np.ndarray]:
    """Select the entries of one chain, without its name, at `index` of their leading dimensions."""
    own = f"{chain}/"
    return {k.removeprefix(own): v[index] for k, v in tensors.items() if k.startswith(own)}


def fingerprint(weights: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of a network's parameters, by which a server recognises its weights."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name]).data)
    return digest.hexdigest()


def save(
    path: str,
    chains: list[Chain],
    weights: dict[str, np.ndarray],
    provenance: dict[str, Any],
    training: list[dict[str, Any]] | None = None,
) -> None:
    """Write a model file; `training` has a record of each trained network."""
    metadata = {
        "training": training or [],
        "chains": [chain.describe() for chain in chains],
        "initialisation": "uniform in ±1/sqrt(fan_in), or in ±spread of the chain; times gain",
        "provenance": provenance,
    }
    write_tensors(path, weights, metadata)


class _Metadata(Metadata):
    chains: list[dict[str, Any]]


def read(path: str) -> ModelFile:
    """Read a model file; raise `ArtifactError` if it is missing, damaged or of another kind."""
    weights, metadata = read_tensors(path, _Metadata)
    with whole(path):
        chains = tuple(Chain.from_description(entry) for entry in metadata["chains"])
        for chain in chains:
            seeds: int | None = None
            for name, shape in parameter_shapes(chain).items():
                # A client uses its own lock.
                if is_private(name) and f"{chain.name}/{name}" not in weights:
                    continue
                array = check_array(weights, f"{chain.name}/{name}", FLOATS, (seeds, *shape))
                seeds = len(array)
    return ModelFile(chains, weights)


def runs(chains: tuple[Chain, ...], seeds: int, images: int) -> Iterator[tuple[Chain, int, int]]:
    """Iterate over (chain, seed, image) of an experiment, in the order of all files."""
    return product(chains, range(seeds), range(images))
