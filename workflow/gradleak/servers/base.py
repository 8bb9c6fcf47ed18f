"""The contract of a server, and the files of those that are not honest."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.servers.secret import Secret, Secrets

# Looked up by name, so that an edit of one server leaves the results of the others as they are.
SERVERS = {
    "mkor": ("gradleak.servers.mkor", "MkorServer"),
    "class_fishing": ("gradleak.servers.class_fishing", "ClassFishingServer"),
}
# Apart from the seeds of initial weights and of defences.
SEED = 15_485_863


class Server(Protocol):
    """A malicious server with its settings bound."""

    def corrupt(
        self, chain: Chain, weights: Mapping[str, np.ndarray], seed: int
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Parameters that are sent instead of `weights`, and the values of the secret."""


def build(settings: Mapping[str, Any]) -> Server:
    """Server from an entry of ``servers`` in config.yaml."""
    options = {key: value for key, value in settings.items() if key != "method"}
    module, name = SERVERS[settings["method"]]
    server: Server = getattr(importlib.import_module(module), name)(**options)
    return server


def create(paths: tuple[str, str], models: files.ModelFile, settings: Mapping[str, Any]) -> None:
    """Write what a server sends and what it keeps.

    Parameters
    ----------
    paths
        Model file to send, and secret file.
    models
        The honest model file; its architectures stay as they are.
    settings
        Entry of ``servers`` in config.yaml.
    """
    server = build(settings)
    sent: dict[str, np.ndarray] = {}
    secrets: dict[str, list[Secret]] = {}
    for chain in models.chains:
        seeds = len(models.weights[f"{chain.name}/{chain.layers[-1].name}.weight"])
        for seed in range(seeds):
            changed, values = server.corrupt(chain, models.of(chain, seed), SEED + seed)
            for name, value in changed.items():
                key = f"{chain.name}/{name}"
                if key not in sent:
                    sent[key] = np.empty((seeds, *value.shape), value.dtype)
                sent[key][seed] = value
            secrets.setdefault(chain.name, []).append(
                Secret(settings["method"], files.fingerprint(changed), settings, values)
            )
    provenance = {"settings": dict(settings)}
    files.save(paths[0], list(models.chains), sent, provenance)
    Secrets(secrets).save(paths[1], provenance)
