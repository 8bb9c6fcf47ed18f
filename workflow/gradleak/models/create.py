"""Models from config: one chain, or a family of them, under all seeds."""

from __future__ import annotations

from typing import Any

from gradleak.config import Model
from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.models.family import draw
from gradleak.models.initial import family_weights
from gradleak.provenance import record


def create(path: str, name: str, settings: dict[str, Any], seeds: int, code: str) -> None:
    """Write the model file of one entry of ``models`` or ``families`` in config.yaml."""
    if "layers" in settings:
        entry = Model.model_validate(settings)
        chains = [Chain(name, entry.input, entry.specs())]
    else:
        chains = draw(name, settings, settings["networks"])
    weights = family_weights(chains, seeds)
    files.save(path, chains, weights, record(settings, code, seeds=seeds))
