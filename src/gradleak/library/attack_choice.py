"""Attacks of the library by name, with their settings unless the caller gives others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from gradleak.attacks.base import Attack, ManyAttack
from gradleak.attacks.optimization.inverting import BALANCED
from gradleak.attacks.runner import build
from gradleak.errors import ConfigError
from gradleak.settings import registry
from gradleak.settings.validation_messages import nearest, sentence

CLOSED, SECOND, SEARCH, SURROGATE = "rgap", "gauss_newton", "inverting_gradients", "surrogate"
MALICIOUS, ANALYTIC = "mkor", "analytic"
# Inverting Gradients with balanced gradients, and the number of steps of its authors. A caller's
# `tv` gives the paper's objective.
TUNED: Mapping[str, Any] = MappingProxyType({**BALANCED, "iterations": 4800, "statistics": 0.1})
# Attacks by name, with what is set unless the caller does. R-GAP's rows are balanced, which is
# exact where float32 gradients leave the paper's own with noise. DLG has the gradients of its
# authors, and starts in the range of inputs.
ATTACKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        CLOSED: {"rows": "balanced"},
        "copa": {},
        SECOND: {},
        "unlock": {},
        "dlg": {"iterations": 6000, "start": "uniform"},
        SEARCH: TUNED,
        SURROGATE: {"method": SEARCH, **TUNED},
        "grnn": {},
        MALICIOUS: {"rows": "all"},
        ANALYTIC: {},
    }
)


def chosen(name: str, settings: Mapping[str, Any], device: str) -> Attack | ManyAttack | None:
    """Return an attack; None for `ANALYTIC`, which is none of the pipeline's.

    Raises `ConfigError`, naming the attack or setting, if there is no such.
    """
    if not isinstance(name, str) or name not in ATTACKS:
        choices = ", ".join(ATTACKS)
        raise ConfigError(
            f"attack: {name!r} is not known{nearest(str(name), ATTACKS)}; choose one of {choices}."
        )
    if name == ANALYTIC:
        if settings:
            raise ConfigError(f"{name}: it has no settings; take {next(iter(settings))} out.")
        return None
    options = {"method": name, **_defaults(name, settings), **settings}
    try:
        return build(options, device)
    except ValidationError as error:
        kind = registry.class_of("attacks", options["method"])
        raise ConfigError(f"{name}: {sentence(error, kind)}") from error


def _defaults(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings beside a caller's; `ConfigError` for a weight and a balance at once."""
    given = dict(ATTACKS[name])
    if "balance" not in given:
        return given
    balanced = settings.get("balance", given["balance"]) is not None
    if "tv" in settings and "balance" in settings and balanced:
        raise ConfigError(
            f"{name}: tv is a weight of total variation, which balance takes the place of; give "
            "one of them."
        )
    if balanced and "tv" not in settings:
        return given
    return {key: value for key, value in given.items() if key not in BALANCED}
