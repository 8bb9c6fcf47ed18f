"""Models from descriptions: listed chains, or a family of them, under all seeds."""

from typing import Any

from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.models.initial import family_weights
from gradleak.models.random_networks import draw


def create(path: str, name: str, settings: dict[str, Any], seeds: int) -> None:
    """Write a model file of `name`, a model, group or family, with `seeds` initializations.

    `settings` has ``chains``, a list of results of `Chain.describe`, or is an entry of
    ``families`` in config.yaml.
    """
    if "chains" in settings:
        chains = [Chain.from_description(chain) for chain in settings["chains"]]
    else:
        chains = draw(name, settings, settings["networks"])
    weights = family_weights(chains, seeds)
    files.save(path, chains, weights, {"settings": settings, "seeds": seeds})
