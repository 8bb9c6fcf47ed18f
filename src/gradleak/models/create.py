"""Model files of listed networks, and of random ones for questions about architectures."""

from contextlib import suppress
from typing import Any

import numpy as np

from gradleak.errors import ConfigError
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import family_weights

TRIES = 1000
SIZES = ("filters", "kernels", "strides", "paddings")


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


def draw(name: str, settings: dict[str, Any], networks: int) -> list[Chain]:
    """Draw networks of convolutions and one fully connected layer.

    Sizes of each layer are drawn independently and uniformly from the lists in `settings`
    (keys of ``families`` in config.yaml). If a kernel does not fit its input, the network is
    drawn again; `ConfigError` if they hardly ever fit. A larger `networks` keeps the earlier draws.
    """
    generator = np.random.default_rng(settings["seed"])
    activation = Activation(settings["activation"])
    out: list[Chain] = []
    for _ in range(TRIES + 100 * networks):
        if len(out) == networks:
            break
        specs: list[ConvSpec | LinearSpec] = []
        for _ in range(settings["convolutions"]):
            filters, *sides = (int(generator.choice(settings[key])) for key in SIZES)
            kernel, stride, padding = ((side, side) for side in sides)
            specs.append(ConvSpec(filters, kernel, stride, padding, activation=activation))
        specs.append(LinearSpec(settings["classes"], True, activation))
        channels, height, width = settings["input"]
        chain = Chain(f"{name}_{len(out):03d}", (channels, height, width), tuple(specs))
        with suppress(ConfigError):
            _ = chain.layers
            out.append(chain)
    if len(out) < networks:
        raise ConfigError(
            f"families.{name}: hardly any draw fits its input; use smaller kernels or strides."
        )
    return out
