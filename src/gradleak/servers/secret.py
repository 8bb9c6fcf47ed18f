"""A malicious server's secret, in a file that only its attack reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradleak.models.files import select
from gradleak.runtime.artifacts import FLOATS, check_array, read_tensors, whole, write_tensors
from gradleak.runtime.metadata import Metadata

# Gray levels of the constant images whose features a server computes for itself.
REFERENCES = (0.0, 0.5, 1.0)
# Required values of each method's secret: types, and shapes per initialization.
NEEDED: Mapping[str, Mapping[str, tuple[tuple[str, ...], tuple[int | None, ...]]]] = {
    "mkor": {"references": (FLOATS, (len(REFERENCES), None))},
    "class_fishing": {"target": (("int64",), ())},
}


class _Metadata(Metadata):
    method: str
    settings: dict[str, Any]
    fingerprints: dict[str, list[str]]


@dataclass(frozen=True)
class Secret:
    """A server's knowledge of one network under one initialization."""

    method: str  # method of the server: ``mkor`` or ``class_fishing``
    fingerprint: str  # of the weights that it sent (`gradleak.models.files.fingerprint`)
    settings: Mapping[str, Any]  # entry of ``servers`` in config.yaml
    # Arrays by name. MKOR: ``channel{l}`` the considered filters of convolution l in the order of
    # its plan; ``nodes`` (N, m) the rows of each class in the first fully connected layer and
    # ``path`` (N, m) the products of the weights from there to the output; ``references`` (3, n),
    # the features of images of `REFERENCES`. Class fishing: ``target``, the class.
    values: Mapping[str, np.ndarray]


class Secrets(dict[str, list[Secret]]):
    """Secrets ``{chain: [secret of each seed]}`` of all networks and seeds in a model file."""

    def of(self, chain: str, seed: int) -> Secret:
        """Secret of one network under one seed."""
        return self[chain][seed]

    def save(self, path: str, provenance: dict[str, Any]) -> None:
        """Write a secret file."""
        tensors = {
            f"{chain}/{name}": np.stack([secret.values[name] for secret in drawn])
            for chain, drawn in self.items()
            for name in drawn[0].values
        }
        first = next(iter(self.values()))[0]
        metadata = {
            "method": first.method,
            "settings": dict(first.settings),
            "fingerprints": {chain: [s.fingerprint for s in own] for chain, own in self.items()},
            "provenance": provenance,
        }
        write_tensors(path, tensors, metadata)

    @staticmethod
    def read(path: str) -> Secrets:
        """Read a secret file; `ArtifactError` if it is missing, damaged or of another kind."""
        tensors, metadata = read_tensors(path, _Metadata)
        entries = {}
        with whole(path):
            method, settings = metadata["method"], metadata["settings"]
            for chain, marks in metadata["fingerprints"].items():
                own = select(tensors, chain)
                for name, (kinds, shape) in NEEDED[method].items():
                    check_array(own, name, kinds, (len(marks), *shape))
                for name, value in own.items():
                    if value.shape[:1] != (len(marks),) or not np.isfinite(value).all():
                        raise ValueError(f"array '{chain}/{name}' has no value for each draw")
                entries[chain] = [
                    Secret(method, mark, settings, select(tensors, chain, seed))
                    for seed, mark in enumerate(marks)
                ]
        return Secrets(entries)
