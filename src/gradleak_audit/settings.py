"""Settings of an audit, and names of the network in its result."""

import math
import operator
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Any

from gradleak.errors import ConfigError
from gradleak.models.losses import LOSSES
from gradleak_audit.read import client

MODES = ("auto", *client.MODES)
# Gradients under attack, and seeds, by scale.
AMOUNTS = {"smoke": (2, 1), "laptop": (4, 2), "paper": (20, 5)}


@dataclass(frozen=True)
class Settings:
    """Amounts of an audit; keys as in an entry of ``audit`` in config.yaml."""

    loss: str = "cross_entropy"  # one of `gradleak.models.losses.LOSSES`
    mode: str = "auto"  # training, evaluation, or auto: training where a batch allows it
    count: int | None = None  # gradients under attack; by scale if None
    seeds: int | None = None  # number of seeds; by scale if None
    # Batch sizes: of the unchanged network, then larger ones.
    batches: tuple[int, ...] = (1, 4)
    offset: float = 0.0  # inputs are (pixels / 255 + offset) / std
    std: float = 1.0
    scale: str = "laptop"  # smoke, laptop or paper: budget of attacks and training
    device: str = "cpu"  # auto, cpu, cuda or mps

    def __post_init__(self) -> None:
        wanted = "batch sizes that grow, for example [1, 4]"
        sizes = whole("batches", self.batches, wanted)
        if not sizes or any(a >= b for a, b in pairwise(sizes)):
            raise ConfigError(f"batches: give {wanted}, not {list(sizes)}.")
        object.__setattr__(self, "batches", sizes)
        for key in ("count", "seeds"):
            if (value := getattr(self, key)) is not None:
                (amount,) = whole(key, (value,), "a whole number of 1 or more", shown=value)
                object.__setattr__(self, key, amount)
        for key, known in (("loss", LOSSES), ("mode", MODES), ("scale", tuple(AMOUNTS))):
            if (chosen := getattr(self, key)) not in known:
                choices = ", ".join(known)
                raise ConfigError(f"{key}: {chosen} is not known; choose one of {choices}.")
        for key in ("offset", "std"):
            number = getattr(self, key)
            if not isinstance(number, Real) or not math.isfinite(number):
                raise ConfigError(f"{key}: {number!r} is no finite number; give one.")
        if not self.std > 0:
            raise ConfigError(f"std: {self.std:g} is not above 0; correct it.")

    @property
    def amounts(self) -> tuple[int, int]:
        """Numbers of gradients and seeds."""
        count, seeds = AMOUNTS[self.scale]
        return self.count or count, self.seeds or seeds


def whole(key: str, values: Any, wanted: str, *, shown: Any = None) -> tuple[int, ...]:
    """Validate positive integers of a setting; `ConfigError` says what is `wanted` instead."""
    try:
        found = tuple(operator.index(value) for value in values)
    except TypeError:
        found = (0,)
    if any(value < 1 for value in found):
        raise ConfigError(f"{key}: give {wanted}, not {values if shown is None else shown!r}.")
    return found


@dataclass(frozen=True)
class Origin:
    """Description of a network in the result."""

    name: str  # of the audit
    source: str
    weights: str
