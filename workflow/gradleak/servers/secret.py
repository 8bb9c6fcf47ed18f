"""What a malicious server keeps to itself, in a file that only its attack reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradleak.artifacts import read_tensors, write_tensors

# Gray levels of the constant images whose features a server computes for itself.
REFERENCES = (0.0, 0.5, 1.0)


@dataclass(frozen=True)
class Secret:
    """One server's knowledge of one network under one draw of weights.

    Attributes
    ----------
    method
        Method of the server: ``mkor`` or ``class_fishing``.
    fingerprint
        Of the weights that it sent (`gradleak.models.files.fingerprint`).
    settings
        Entry of ``servers`` in config.yaml.
    values
        Arrays by name. MKOR: ``channel{l}`` the considered filters of convolution l in the order
        of its plan; ``nodes`` (N, m) the rows of each class in the first fully connected layer
        and ``path`` (N, m) the products of the weights from there to the output; ``references``
        (3, n), the features of images of `REFERENCES`. Class fishing: ``target``, the class.
    """

    method: str
    fingerprint: str
    settings: Mapping[str, Any]
    values: Mapping[str, np.ndarray]


class Secrets:
    """Secrets of all networks and draws in a model file.

    Parameters
    ----------
    entries
        ``{chain: [secret of each seed]}``.
    """

    def __init__(self, entries: Mapping[str, list[Secret]]) -> None:
        self._entries = entries

    def of(self, chain: str, seed: int) -> Secret:
        """Secret of one network under one draw."""
        return self._entries[chain][seed]

    def save(self, path: str, provenance: dict[str, Any]) -> None:
        """Write a secret file."""
        tensors = {
            f"{chain}/{name}": np.stack([secret.values[name] for secret in drawn])
            for chain, drawn in self._entries.items()
            for name in drawn[0].values
        }
        first = next(iter(self._entries.values()))[0]
        metadata = {
            "method": first.method,
            "settings": dict(first.settings),
            "fingerprints": {
                chain: [secret.fingerprint for secret in drawn]
                for chain, drawn in self._entries.items()
            },
            "provenance": provenance,
        }
        write_tensors(path, tensors, metadata)

    @staticmethod
    def read(path: str) -> Secrets:
        """Read a secret file."""
        tensors, metadata = read_tensors(path)
        entries = {}
        for chain, marks in metadata["fingerprints"].items():
            own = {
                key.removeprefix(f"{chain}/"): value
                for key, value in tensors.items()
                if key.startswith(f"{chain}/")
            }
            entries[chain] = [
                Secret(
                    metadata["method"],
                    mark,
                    metadata["settings"],
                    {name: value[seed] for name, value in own.items()},
                )
                for seed, mark in enumerate(marks)
            ]
        return Secrets(entries)
