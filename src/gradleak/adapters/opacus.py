"""Opacus: the privacy budget of the ``dp_sgd`` defence, and networks that it can train."""

from __future__ import annotations

import copy
from importlib import import_module
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from torch import nn

from gradleak.errors import ConfigError, require_extra


def epsilon(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float = 1e-5,
    accountant: Literal["prv", "rdp"] = "prv",
) -> float:
    """Return ε of (ε, δ)-differential privacy after all steps of all rounds together.

    An accountant that is made anew for each round tells the ε of one round only.

    Parameters
    ----------
    noise_multiplier
        σ of the defence ``dp_sgd``, above 0.
    sample_rate
        Probability that an image is in the batch of a step, in (0, 1].
    steps
        Number of steps over all rounds.
    delta
        δ, in (0, 1), usually below one over the number of images.
    accountant
        ``prv``, by numerical composition, or ``rdp``, by Rényi divergences: larger, and not tight
        for little noise, of which Opacus warns.

    Raises
    ------
    ConfigError
        If a value is out of range; `MissingExtra` if Opacus is not installed.

    Notes
    -----
    An attacker who sees every step of one client sees a sampling rate of 1 if each batch holds the
    same image.
    """
    rules = (
        ("noise_multiplier", _real(noise_multiplier) and noise_multiplier > 0, "a number above 0"),
        ("sample_rate", _real(sample_rate) and 0 < sample_rate <= 1, "a share above 0, at most 1"),
        ("steps", isinstance(steps, Integral) and steps >= 1, "a whole number, 1 or more"),
        ("delta", _real(delta) and 0 < delta < 1, "a probability between 0 and 1"),
        ("accountant", accountant in ("prv", "rdp"), "prv or rdp"),
    )
    given = locals()
    for key, fits, wanted in rules:
        if not fits:
            raise ConfigError(f"{key}: give {wanted}, not {given[key]!r}.")
    found = _opacus("accountants").create_accountant(accountant)
    found.history = [(noise_multiplier, sample_rate, steps)]
    # It takes logarithms of 0 where every image is in the batch. Its own warnings, of bounds that
    # are not tight, are the caller's to see.
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(found.get_epsilon(delta=delta))


def _real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def fixed(model: nn.Module) -> nn.Module:
    """Return a copy with GroupNorm in place of BatchNorm, as `ModuleValidator.fix` makes it.

    DP-SGD needs it, since batch norms mix the images of a batch. It is another network with other
    leakage: audit both.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: give a torch.nn.Module, not {type(model).__name__}.")
    module: nn.Module = _opacus("validators").ModuleValidator.fix(copy.deepcopy(model))
    return module


def _opacus(name: str) -> Any:
    require_extra("opacus", "opacus")
    return import_module(f"opacus.{name}")
