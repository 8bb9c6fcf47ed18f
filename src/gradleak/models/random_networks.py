"""Random networks, for questions about architectures in general."""

from typing import Any

import numpy as np

from gradleak.errors import ConfigError
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec

TRIES = 1000
SIZES = ("filters", "kernels", "strides", "paddings")


def draw(name: str, settings: dict[str, Any], networks: int) -> list[Chain]:
    """Draw networks of convolutions and one fully connected layer.

    Sizes of each layer are drawn independently and uniformly from the lists in `settings`
    (keys of ``families`` in config.yaml). If a kernel does not fit its input, the network is
    drawn again; `ConfigError` if they hardly ever fit. A larger `networks` keeps the earlier draws.
    """
    generator = np.random.default_rng(settings["seed"])
    activation = Activation(settings["activation"])
    out: list[Chain] = []
    tries = 0
    while len(out) < networks:
        tries += 1
        if tries > TRIES + 100 * networks:
            raise ConfigError(
                f"families.{name}: hardly any draw fits its input; use smaller kernels or strides."
            )
        specs: list[ConvSpec | LinearSpec] = []
        for _ in range(settings["convolutions"]):
            filters, *sides = (int(generator.choice(settings[key])) for key in SIZES)
            kernel, stride, padding = ((side, side) for side in sides)
            specs.append(ConvSpec(filters, kernel, stride, padding, activation=activation))
        specs.append(LinearSpec(settings["classes"], True, activation))
        channels, height, width = settings["input"]
        chain = Chain(f"{name}_{len(out):03d}", (channels, height, width), tuple(specs))
        try:
            _ = chain.layers
        except ConfigError:
            continue
        out.append(chain)
    return out
