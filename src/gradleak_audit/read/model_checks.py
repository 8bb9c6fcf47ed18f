"""Copy a user's network for the audit, refusing networks that cannot be audited."""

from __future__ import annotations

import copy
import inspect
import keyword
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradleak.errors import ConfigError

FROZEN = "Frozen parameters were taken for shared ones, like all others."
HALF = "Parameters of half precision were taken in float32."
# Bytes of a float32 value.
SINGLE = 4


def own_copy(model: Any) -> tuple[nn.Module, tuple[str, ...]]:
    """Return a copy whose parameters all have gradients in float32 or better, and its differences.

    `model` is not modified; differences from it are given as sentences. Raises `ConfigError` if it
    is not a network, or has layers that cannot be seen, copied or differentiated.
    """
    check_network(model, "network")
    try:
        found = copy.deepcopy(model)
    except Exception as error:
        why = first_line(error).split(". ")[0]
        raise ConfigError(
            f"network: {type(model).__name__} cannot be copied ({why}); "
            "give one that keeps no computed weights (torch.nn.utils.remove_weight_norm, "
            "torch.nn.utils.prune.remove) and no activations."
        ) from error
    floating = [value for value in found.parameters() if value.is_floating_point()]
    notes = [FROZEN] if not all(value.requires_grad for value in floating) else []
    if any(value.element_size() < SINGLE for value in floating):
        found = found.float()
        notes.append(HALF)
    try:
        return found.requires_grad_(True), tuple(notes)
    except RuntimeError as error:
        raise ConfigError(
            f"network: {type(model).__name__} has parameters without a gradient "
            f"({first_line(error)}); give the network before it was quantised."
        ) from error


def check_network(found: Any, what: str) -> None:
    """Refuse anything but a network with visible layers and initialized weights.

    The message of the `ConfigError` begins with `what`, the origin of `found`.
    """
    if isinstance(found, nn.Module):
        _check_plain(found)
        return
    if inspect.isclass(found) and issubclass(found, nn.Module):
        raise ConfigError(
            f"{what} is the class {found.__name__}, not a network of it; give {found.__name__}(…)."
        )
    raise ConfigError(
        f"{what} is of type {type(found).__name__}, not a torch.nn.Module; give the network itself."
    )


def same_parameters(first: nn.Module, second: nn.Module, what: str) -> list[str]:
    """Names of parameters with equal values in two initializations of a network.

    Raises `ConfigError`, whose message begins with `what`, if the networks differ.
    """
    draws = [dict(network.named_parameters()) for network in (first, second)]
    one, other = ([(name, value.shape) for name, value in draw.items()] for draw in draws)
    if one != other:
        raise ConfigError(
            f"{what} gives parameters of other names or shapes at another seed; let chance draw "
            "weights alone."
        )
    # The two may be on different devices.
    first_draw, second_draw = (
        {name: value.detach().cpu().float() for name, value in draw.items()} for draw in draws
    )
    return [name for name, value in first_draw.items() if torch.equal(value, second_draw[name])]


def _check_plain(model: nn.Module) -> None:
    """Refuse compiled, scripted and lazy networks, and names that a graph cannot hold."""
    kind = type(model).__name__
    for name, part in model.named_modules():
        where = f"{name} of {kind}" if name else kind
        last = name.rpartition(".")[2]
        if keyword.iskeyword(last) or '"' in last or not last.isprintable():
            raise ConfigError(
                f"network: {kind} has a layer named {last!r}, which the Python code of its graph "
                "cannot hold; rename it."
            )
        for hides, how, before in (
            # Its class lives in a module that takes seconds to import.
            (type(part).__name__ == "OptimizedModule", "compiled", "torch.compile"),
            (isinstance(part, torch.jit.ScriptModule), "a ScriptModule", "torch.jit"),
        ):
            if hides:
                raise ConfigError(
                    f"network: {where} is {how}, which hides its layers; give the network as it "
                    f"was before {before}."
                )
    for name, value in model.named_parameters():
        if is_lazy(value):
            raise ConfigError(
                f"network: {name} of {kind} has no shape yet, since its layer is lazy; pass an "
                "image through the network first."
            )


def first_line(error: BaseException) -> str:
    """First line of an error's message without the final full stop; its type if there is none."""
    if isinstance(error, SystemExit):
        return "it ends Python with sys.exit"
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def times(size: Sequence[int]) -> str:
    """Format a shape as in 3x32x32."""
    return "x".join(map(str, size))
