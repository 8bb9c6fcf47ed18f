"""Defences on the gradients of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gradleak.client.capture import capture, signs
from gradleak.client.defences.base import Arrays, Client, Defence, noise_seed
from gradleak.client.shared_parameters import Private, own_lock
from gradleak.data.targets import TargetSet
from gradleak.errors import ConfigError
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile, runs, select
from gradleak.models.locks import is_key
from gradleak.models.losses import BINARY
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
        alone = _Alone(chain, weights, targets, batch, metadata, noise_seed(seed, batch))
        sharing = Client(chain, weights, targets.batch(batch), true, alone)
        for name, value in defence.apply(sharing, shared, noise_seed(seed, batch)).items():
            tensors[f"{chain.name}/{name}"][seed, batch] = value


@dataclass(frozen=True)
class _Alone:
    """Gradients of single images of a batch, taken as `capture_all` took that of the whole."""

    chain: Chain
    weights: Arrays
    targets: TargetSet
    batch: int
    metadata: Mapping[str, Any]
    seed: int

    def __call__(self, number: int) -> dict[str, np.ndarray]:
        """Gradient of the loss of one image, on the CPU."""
        told, part = self.metadata, slice(number, number + 1)
        mode = told["mode"][self.chain.name]
        if mode == "training" and self.chain.is_normalised:
            raise ConfigError(
                f"models.{self.chain.name}: its batch norms mix the images of a batch, so that no "
                "image has a gradient of its own to clip; set mode: evaluation."
            )
        image = self.targets.inputs(self.batch, part)
        label = self.targets.labels[self.batch, part]
        if told["loss"] in BINARY:
            label = signs(self.chain, dict(self.weights), image, told["labels"])
        given = self.chain, self.weights, image, label
        how: dict[str, Any] = {"loss": told["loss"], "mode": mode, "seed": self.seed}
        return capture(*given, precision=told["precision"], device=torch.device("cpu"), **how)
