"""Private state of a client of a federation: keys of locked layers and weights of their locks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.errors import ArtifactError
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile, select
from gradleak.models.initial import draw_key
from gradleak.models.locks import KEY, Locked, names_of, private
from gradleak.runtime.artifacts import read_tensors, whole, write_tensors
from gradleak.runtime.metadata import Metadata, Place

AGAIN = "delete it and ask Snakemake for it again"


@dataclass(frozen=True)
class ClientFile:
    """Private part of one client, for all networks and initializations of a model file."""

    client: int  # number, from 0
    models: tuple[str, ...]  # names of the networks
    # ``{chain}/{layer}_key`` (seeds, S) and ``{chain}/{layer}_lock_*`` (seeds, ...)
    weights: Mapping[str, np.ndarray]
    path: str  # path of the file

    def of(self, chain: Chain, seed: int) -> dict[str, np.ndarray]:
        """Private part of one network and one seed, by parameter name.

        Raises `ArtifactError` if the file belongs to another model, or a key or lock weights are
        missing, of another size, or for fewer seeds.
        """
        if chain.name not in self.models:
            raise ArtifactError(
                f"{self.path} is of {', '.join(self.models)}, not of {chain.name}; give the client "
                "its file of that model."
            )
        for layer in chain.locked:
            if why := self._misfit(chain, layer, seed):
                raise ArtifactError(f"{self.path}{why}.")
        return private(select(dict(self.weights), chain.name, seed))

    def _misfit(self, chain: Chain, layer: Locked, seed: int) -> str:
        """Return why the private part does not fit a locked layer, empty if it does."""
        size, filters = layer.lock.key, layer.filters
        key, who = self.weights.get(f"{chain.name}/{layer.name}{KEY}"), f"client {self.client}"
        if key is None:
            return f": {who} has no key for {layer.name} of {chain.name}; {AGAIN}"
        if key.shape[1:] != (size,):
            return (
                f": the key of {who} for {layer.name} of {chain.name} has {key[0].size} values, "
                f"but the lock takes {size}; {AGAIN}, or set lock.key: {key[0].size}"
            )
        shapes = {"weight": (filters, size), "bias": (filters,)}
        for name, (part, shape) in product(names_of(layer.name).values(), shapes.items()):
            found = self.weights.get(f"{chain.name}/{name}.{part}")
            if found is None or found.shape[1:] != shape:
                what = "none" if found is None else f"of shape {found.shape[1:]}"
                return (
                    f": {who} should have {name}.{part} of {chain.name} of shape {shape}, but it "
                    f"is {what}; {AGAIN}"
                )
        few = f" has {len(key)} draws of {chain.name}, but draw {seed} is asked for; {AGAIN}"
        return few if seed >= len(key) else ""

    def save(self, provenance: dict[str, Any]) -> None:
        """Write the file."""
        of = {"client": self.client, "models": list(self.models)}
        write_tensors(self.path, self.weights, {**of, "provenance": provenance})


class _Metadata(Metadata):
    client: Place
    models: list[str]


def read(path: str) -> ClientFile:
    """Read a client's file; raise `ArtifactError` if it is missing, damaged, or of another kind."""
    weights, metadata = read_tensors(path)
    if "client" not in metadata:
        raise ArtifactError(f"{path} is not a client's file; give one of results/clients.")
    with whole(path):
        _Metadata.model_validate(metadata)
        for name, array in weights.items():
            if array.dtype != np.float32 or array.ndim < 2 or not array.size:
                raise ValueError(f"array '{name}' is of type {array.dtype}, shape {array.shape}")
    return ClientFile(metadata["client"], tuple(metadata["models"]), weights, path)


def sharing(paths: Sequence[str] | None) -> ClientFile | None:
    """Client that shares a gradient: of a file, or the first of a folder; None without either."""
    if not paths:
        return None
    path = Path(paths[0])
    return read(str(path / "0.safetensors" if path.is_dir() else path))


def create(path: str, client: int, models: ModelFile) -> None:
    """Write a client's first file: its own key; lock weights and seeds of the server's `models`."""
    weights: dict[str, np.ndarray] = {}
    for chain in models.chains:
        own = select(models.weights, chain.name)
        keys = [draw_key(chain, client, seed) for seed in range(len(next(iter(own.values()))))]
        drawn = {name: np.stack([key[name] for key in keys]) for name in keys[0]}
        weights |= {f"{chain.name}/{name}": v for name, v in (private(own) | drawn).items()}
    names = tuple(chain.name for chain in models.chains)
    ClientFile(client, names, weights, path).save({"settings": {"client": client}})
