"""Copy a user's network for the audit, refusing networks that cannot be audited."""

import copy
import inspect
import keyword
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradleak.errors import ConfigError

Size = tuple[int, int, int]  # (C, H, W)
FROZEN = "Frozen parameters were taken for shared ones, like all others."
HALF = "Parameters of half precision were taken in float32."
# Bytes of a float32 value.
SINGLE = 4


def own_copy(model: Any) -> tuple[nn.Module, list[str]]:
    """Return a float32 copy whose parameters all have gradients, and its differences in words.

    Raises `ConfigError` if layers of the network cannot be seen, copied or differentiated.
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
        return found.requires_grad_(True), notes
    except RuntimeError as error:
        raise ConfigError(
            f"network: {type(model).__name__} has parameters without a gradient "
            f"({first_line(error)}); give the network before it was quantised."
        ) from error


def check_network(found: Any, what: str) -> None:
    """Raise `ConfigError` unless `found`, from `what`, has visible layers and set weights."""
    if isinstance(found, nn.Module):
        return _check_plain(found)
    is_, remedy = f"of type {type(found).__name__}, not a torch.nn.Module", "the network itself"
    if inspect.isclass(found) and issubclass(found, nn.Module):
        name = found.__name__
        is_, remedy = f"the class {name}, not a network of it", f"{name}(…)"
    raise ConfigError(f"{what} is {is_}; give {remedy}.")


def same_parameters(first: nn.Module, second: nn.Module, what: str) -> list[str]:
    """Parameters equal in two initializations; `ConfigError` if the networks differ."""
    draws = [list(network.named_parameters()) for network in (first, second)]
    one, other = ([(name, value.shape) for name, value in draw] for draw in draws)
    if one != other:
        raise ConfigError(
            f"{what} gives parameters of other names or shapes at another seed; let chance draw "
            "weights alone."
        )
    # The two may be on different devices.
    values = [[value.detach().cpu().float() for _, value in draw] for draw in draws]
    return [name for (name, _), a, b in zip(one, *values, strict=True) if torch.equal(a, b)]


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
        how = before = ""
        # Its class lives in a module that takes seconds to import.
        if type(part).__name__ == "OptimizedModule":
            how, before = "compiled", "torch.compile"
        elif isinstance(part, torch.jit.ScriptModule):
            how, before = "a ScriptModule", "torch.jit"
        if how:
            hides = "which hides its layers; give the network as it was before"
            raise ConfigError(f"network: {where} is {how}, {hides} {before}.")
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
