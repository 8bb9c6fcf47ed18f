"""Base class of servers, and the files of malicious ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gradleak.models.chain import Chain
from gradleak.settings import registry
from gradleak.settings.fields import Method

if TYPE_CHECKING:
    from gradleak.models.files import ModelFile

Arrays = Mapping[str, np.ndarray]
Sent = tuple[dict[str, np.ndarray], Arrays]  # the parameters sent, the values of the secret
# Separate from the seeds of initial weights and of defences.
SEED = 15_485_863


class Server(Method):
    """An entry of ``servers`` in config.yaml: settings as fields."""

    @abstractmethod
    def corrupt(self, chain: Chain, weights: Arrays, seed: int) -> Sent:
        """Return the parameters sent instead of `weights`, and the values of the secret."""


class HonestServer(Method):
    """The model's own weights, which clients get without a job."""

    method: Literal["honest"] = "honest"


def build(settings: Mapping[str, Any]) -> Server:
    """Return the server of an entry of ``servers`` in config.yaml."""
    server: Server = registry.build("servers", settings)
    return server


def create(paths: tuple[str, str], models: ModelFile, settings: Mapping[str, Any]) -> None:
    """Write the model file that a server sends and its secret file, in `paths`.

    `models` is the honest model file, whose architectures stay as they are; `settings` is an entry
    of ``servers`` in config.yaml.
    """
    from gradleak.models import files
    from gradleak.servers.secret import Secret, Secrets

    server = build(settings)
    sent: dict[str, np.ndarray] = {}
    secrets: dict[str, list[Secret]] = {chain.name: [] for chain in models.chains}
    for chain in models.chains:
        seeds = len(models.weights[f"{chain.name}/{chain.layers[-1].name}.weight"])
        for seed in range(seeds):
            changed, values = server.corrupt(chain, models.of(chain, seed), SEED + seed)
            for name, value in changed.items():
                key = f"{chain.name}/{name}"
                if key not in sent:
                    sent[key] = np.empty((seeds, *value.shape), value.dtype)
                sent[key][seed] = value
            mark = files.fingerprint(changed)
            secrets[chain.name].append(Secret(settings["method"], mark, settings, values))
    provenance = {"settings": dict(settings)}
    files.save(paths[0], list(models.chains), sent, provenance)
    Secrets(secrets).save(paths[1], provenance)
