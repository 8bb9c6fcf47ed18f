"""Load a user's network from a Python file or from torchvision."""

import difflib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from gradleak.errors import ConfigError
from gradleak_audit.read.model_checks import check_network, first_line

# Module name of the imported file, distinct from all packages.
MODULE = "gradleak_audited_network"
TOO_LARGE = 5


def from_file(path: str, factory: str, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """Run a Python file and return the network that its `factory` creates under a seed.

    Raises `ConfigError` if file or factory are missing, fail, or give something else.
    """
    module = _imported(Path(path))
    build = getattr(module, factory, None)
    if not callable(build):
        known = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
        choices = _choices(factory, known)
        raise ConfigError(f"network: {path} has no factory '{factory}'; {choices}.")
    return _built(build, arguments, seed, f"the factory '{factory}' of {path}", Path(path))


def from_torchvision(name: str, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """Return an untrained network of torchvision; `ConfigError` if there is none as given."""
    known = torchvision.models.list_models(torchvision.models)
    if name not in known:
        choices = _choices(name, known)
        raise ConfigError(f"network: torchvision has no classifier '{name}'; {choices}.")
    build = partial(torchvision.models.get_model, name, weights=None)
    return _built(build, arguments, seed, f"torchvision's {name}")


def _imported(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(
            f"network: {path} does not exist; correct file: (from the folder you run in)."
        )
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"network: {path} is no Python file; give one that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    # Modules in the file's folder can be imported, as when it runs as a script.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"network: {path} cannot be imported ({_line(error, path)}{first_line(error)}); run it "
            "with python to see the whole error."
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _built(
    build: Any, arguments: Mapping[str, Any], seed: int, what: str, path: Path | None = None
) -> nn.Module:
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found: nn.Module = build(**arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"network: {what} fails with {type(error).__name__} ({_line(error, path)}"
            f"{first_line(error)}); correct it, or arguments:."
        ) from error
    check_network(found, f"network: what {what} returns")
    return found


def _choices(name: str, known: list[str]) -> str:
    if near := difflib.get_close_matches(name, known, TOO_LARGE):
        return f"near to it: {', '.join(near)}"
    if not known:
        return "it defines none"
    return f"there is {', '.join(known)}" if len(known) <= TOO_LARGE else "look for its name"


def _line(error: BaseException, path: Path | None) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f"line {error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__) if path else ()
    own = [frame for frame in frames if path and Path(frame.filename).name == path.name]
    return f"line {own[-1].lineno}: " if own else ""
