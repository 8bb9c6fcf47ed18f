"""How a network is trained, and the learning rate on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from gradleak.training.sgd import Sgd

PRECISIONS = ("auto", "mixed", "float32")


@dataclass(frozen=True)
class Recipe:
    """Settings of a training; an entry of ``trainings`` in config.yaml holds the same keys.

    Parameters
    ----------
    epochs
        Passes over the training images.
    batch
        Images a step; the last, smaller batch of an epoch is left out if there is another.
    rate
        Learning rate at the start.
    momentum, nesterov, weight_decay
        Of SGD as in `torch.optim.SGD`.
    schedule
        ``step``: times `factor` at each of `milestones`; ``cosine``: (1 + cos(π t)) / 2 of `rate`
        (Loshchilov and Hutter 2017), t the share of all steps done; ``constant``.
    milestones
        Shares of all epochs, each in (0, 1).
    factor
        Of the ``step`` schedule.
    warmup
        Share of all steps over which the rate rises linearly to where the schedule has it.
    crop
        Margin of zeros in pixels from which images are cropped at random; 0 crops nothing.
    flip
        Whether half of the images are mirrored.
    precision
        ``float32``; ``mixed``: bfloat16 where PyTorch's autocast allows it, weights in float32;
        ``auto``: ``mixed`` where the device computes bfloat16 itself.
    checkpoint
        Epochs between checkpoints.
    """

    epochs: int
    batch: int = 128
    rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1
    warmup: float = 0.0
    crop: int = 4
    flip: bool = True
    precision: str = "auto"
    checkpoint: int = 5

    def rate_at(self, step: int, steps: int) -> float:
        """Learning rate of step `step` of all `steps`, both from 0."""
        done = step / steps
        rising = min(1.0, (step + 1) / (self.warmup * steps)) if self.warmup else 1.0
        share = 1.0
        if self.schedule == "cosine":
            share = (1.0 + math.cos(math.pi * done)) / 2.0
        elif self.schedule == "step":
            share = self.factor ** sum(done >= place for place in self.milestones)
        return self.rate * rising * share

    def optimiser(self, module: torch.nn.Module) -> Sgd:
        """SGD over all parameters of a network."""
        return Sgd(
            module.parameters(),
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )


def arithmetic(precision: str, device: torch.device) -> str:
    """``mixed`` or ``float32``: what `precision` means on `device`.

    Measured on two cores with AVX-512 BF16, ResNet-18 of width 16 trains 1.5 times as fast in
    ``mixed``; without such instructions bfloat16 is emulated and slower.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        fits = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        # PyTorch has no public question for this.
        fits = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        fits = False
    return "mixed" if fits else "float32"


def autocast(kind: str, device: torch.device) -> Any:
    """Context in which a network runs; `kind` is that of `arithmetic`."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=kind == "mixed")
