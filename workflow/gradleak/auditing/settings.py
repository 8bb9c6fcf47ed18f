"""What an audit tries, and what it calls the network."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from gradleak.auditing import client
from gradleak.errors import ConfigError

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
        sizes = self.batches
        if not sizes or min(sizes) < 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ConfigError(
                f"batches: {list(sizes)} are not batch sizes that grow; give for example [1, 4]."
            )
        for key, value in (("count", self.count), ("seeds", self.seeds)):
            if value is not None and value < 1:
                raise ConfigError(f"{key}: {value} is too few; give 1 or more.")
        if self.mode not in MODES:
            raise ConfigError(f"mode: {self.mode} is not known; choose one of {', '.join(MODES)}.")
        if self.scale not in AMOUNTS:
            raise ConfigError(
                f"scale: {self.scale} is not known; choose one of {', '.join(AMOUNTS)}."
            )
        if not self.std > 0:
            raise ConfigError(f"std: {self.std:g} is not above 0; correct it.")

    @property
    def amounts(self) -> tuple[int, int]:
        """Gradients and draws."""
        count, seeds = AMOUNTS[self.scale]
        return self.count or count, self.seeds or seeds


@dataclass(frozen=True)
class Origin:
    """What the result says of a network: name of the audit, source, weights, in words."""

    name: str
    source: str
    weights: str
