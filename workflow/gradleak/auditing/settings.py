"""What an audit tries, and what it calls the network."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Any

from gradleak.auditing import client
from gradleak.errors import ConfigError
from gradleak.losses import LOSSES

MODES = ("auto", *client.MODES)
# Gradients under attack, and draws, by scale.
AMOUNTS = {"smoke": (2, 1), "laptop": (4, 2), "paper": (20, 5)}


@dataclass(frozen=True)
class Settings:
    """What is tried; an entry of ``audit`` in config.yaml holds the same keys.

    Attributes
    ----------
    loss
        One of `gradleak.losses.LOSSES`.
    mode
        ``training``, ``evaluation``, or ``auto``: training where a batch allows it.
    count, seeds
        Gradients under attack, and draws; by scale if None.
    batches
        Images that share a gradient: of the unchanged network, then of larger batches.
    offset, std
        Inputs are (pixels / 255 + offset) / std.
    scale
        ``smoke``, ``laptop`` or ``paper``: what attacks and trainings may spend.
    device
        auto | cpu | cuda | mps.
    """

    loss: str = "cross_entropy"
    mode: str = "auto"
    count: int | None = None
    seeds: int | None = None
    batches: tuple[int, ...] = (1, 4)
    offset: float = 0.0
    std: float = 1.0
    scale: str = "laptop"
    device: str = "cpu"

    def __post_init__(self) -> None:
        wanted = "batch sizes that grow, for example [1, 4]"
        sizes = whole("batches", self.batches, wanted)
        if not sizes or any(a >= b for a, b in pairwise(sizes)):
            raise ConfigError(f"batches: give {wanted}, not {list(sizes)}.")
        object.__setattr__(self, "batches", sizes)
        for key, value in (("count", self.count), ("seeds", self.seeds)):
            if value is not None:
                (amount,) = whole(key, (value,), "a whole number of 1 or more", shown=value)
                object.__setattr__(self, key, amount)
        for key, chosen, known in (
            ("loss", self.loss, LOSSES),
            ("mode", self.mode, MODES),
            ("scale", self.scale, tuple(AMOUNTS)),
        ):
            if chosen not in known:
                raise ConfigError(
                    f"{key}: {chosen} is not known; choose one of {', '.join(known)}."
                )
        for key, number in (("offset", self.offset), ("std", self.std)):
            if not isinstance(number, Real) or not math.isfinite(number):
                raise ConfigError(f"{key}: {number!r} is no finite number; give one.")
        if not self.std > 0:
            raise ConfigError(f"std: {self.std:g} is not above 0; correct it.")

    @property
    def amounts(self) -> tuple[int, int]:
        """Gradients and draws."""
        count, seeds = AMOUNTS[self.scale]
        return self.count or count, self.seeds or seeds


def whole(key: str, values: Any, wanted: str, *, shown: Any = None) -> tuple[int, ...]:
    """Whole numbers above 0, of any type that holds such ones.

    Parameters
    ----------
    key, values
        A setting, and the sequence that was given for it.
    wanted
        What it should be, for the message.
    shown
        What the message shows, if not `values`.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    try:
        found = tuple(operator.index(value) for value in values)
    except TypeError:
        found = (0,)
    if any(value < 1 for value in found):
        given = values if shown is None else shown
        raise ConfigError(f"{key}: give {wanted}, not {given!r}.")
    return found


@dataclass(frozen=True)
class Origin:
    """What the result says of a network: name of the audit, source, weights, in words."""

    name: str
    source: str
    weights: str
