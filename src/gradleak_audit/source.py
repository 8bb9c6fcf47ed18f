"""Load a user's network from a Python file or from torchvision, and its weights."""

import difflib
import importlib.util
import sys
import traceback
import warnings
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gradleak.errors import ConfigError
from gradleak.reading.model_checks import check_network, first_line

# Module name of the imported file, distinct from all packages.
MODULE = "gradleak_audited_network"
TOO_LARGE = 5
SAFETENSORS = ".safetensors"
# First bytes of PyTorch's zip-based format.
ZIP = b"PK\x03\x04"
# A file may unpack to this multiple of the network's state, since float64 takes four times as much
# as half precision and views are stored with their whole storage, plus SLACK bytes. Otherwise an
# archive could exhaust the memory.
FACTOR, SLACK = 8, 2**26


def from_file(path: str, factory: str, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """Run a Python file and return the network that its `factory` creates under a seed.

    Raises `ConfigError` if file or factory are missing, fail, or give something else.
    """
    module = _imported(Path(path))
    if not callable(build := getattr(module, factory, None)):
        known = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
        choices = _choices(factory, known)
        raise ConfigError(f"network: {path} has no factory '{factory}'; {choices}.")
    return _built(build, arguments, seed, f"the factory '{factory}' of {path}", Path(path))


def from_torchvision(name: str, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """Return an untrained network of torchvision; `ConfigError` if there is none as given."""
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"network: torchvision cannot be imported ({first_line(error)}); install its build for "
            f"PyTorch {torch.__version__}, from the same index."
        ) from error
    if name not in (known := torchvision.models.list_models(torchvision.models)):
        choices = _choices(name, known)
        raise ConfigError(f"network: torchvision has no classifier '{name}'; {choices}.")
    build = partial(torchvision.models.get_model, name, weights=None)
    return _built(build, arguments, seed, f"torchvision's {name}")


def _imported(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(
            f"network: {path} does not exist; correct its path (from the folder you run in)."
        )
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"network: {path} is not a Python file; give one that ends in .py.")
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


def load_weights(network: nn.Module, path: str) -> None:
    """Load weights into a network, which stays unmodified on failure.

    Floating-point tensors are converted to the network's precision. The file is safetensors or a
    state dict of `torch.save`; of the latter only tensors are read, and no code is run. Raises
    `ConfigError` if the file is missing, not a regular file, damaged, far larger than the network,
    does not hold a state dict of this network, or holds unsupported tensors: integer, complex,
    sparse, quantised, without values, or out of range.
    """
    file = Path(path)
    if not file.is_file():
        why = "is not a regular file but a pipe or device; give a file"
        if file.is_dir():
            why = "is a folder; give the file in it that holds them"
        elif not file.exists():
            why = "does not exist; correct the path, or take weights out"
        raise ConfigError(f"weights: {path} {why}.")
    own = network.state_dict()
    found = _tensors(file, sum(value.nbytes for value in own.values()))
    parts = [f"it lacks {_shown(key)}" for key in own if key not in found][:1]
    parts += [f"it has {_shown(key)}" for key in found if key not in own][:1]
    if parts:
        raise ConfigError(
            f"weights: {path} is of another network than {type(network).__name__}: "
            f"{' and '.join(parts)}; give the weights that belong to it."
        )
    for key, value in own.items():
        if why := _why_not(found[key], value):
            raise ConfigError(f"weights: {_shown(key)} of {path} {why}.")
    network.load_state_dict({key: found[key].detach().to(own[key].dtype) for key in own})


def _why_not(value: torch.Tensor, own: torch.Tensor) -> str:
    """Reason why a tensor cannot take the place of the network's `own`; empty if it can."""
    kind = value.dtype
    if value.is_quantized:
        return f"({kind}) is quantised; store it after dequantize()"
    if value.is_nested or value.layout != torch.strided:
        return f"({kind}) is sparse or nested; store it after to_dense()"
    if value.is_meta:
        remedy = "save it from a loaded network"
        return f"({kind}) lies on the device meta, which holds no numbers; {remedy}"
    if value.shape != own.shape:
        shapes = f"the shape {list(value.shape)}, not {list(own.shape)}"
        return f"has {shapes}, so it is of another network; give the weights that belong to it"
    if own.is_floating_point() and not value.is_floating_point():
        return f"is of type {kind}, not floating point; save it as {own.dtype}"
    # One-byte types have no test of their own.
    known = value.float() if value.element_size() == 1 else value
    if value.is_floating_point() and not torch.isfinite(known).all():
        return f"({kind}) holds NaN or infinity; give weights that are numbers"
    if own.is_floating_point():
        # The audit runs half precision in float32; a float64 network would meet float32 operations.
        for dtype in (own.dtype, torch.float32):
            if not torch.isfinite(value.to(dtype)).all():
                over = f"holds numbers that overflow {dtype}"
                return f"({kind}) {over}; give weights within its range"
    # Counters, such as BatchNorm's number of batches.
    elif kind != own.dtype and (
        value.is_complex() or not torch.equal(value.to(own.dtype).to(kind), value)
    ):
        where = f"does not fit into the network's own {own.dtype}"
        return f"is of type {kind} and {where}; save it as that"
    return ""


def _tensors(file: Path, own: int) -> dict[str, torch.Tensor]:
    """Read a file's state dict without running code; `own` is the network's state in bytes."""
    try:
        size = _unpacked(file)
        if size > FACTOR * own + SLACK:
            raise ConfigError(
                f"weights: {file} would unpack to {size:,} bytes, but the network's own weights "
                f"are {own:,} bytes; give the state dict of this network alone."
            )
        if file.suffix == SAFETENSORS:
            return load_file(file)
        with warnings.catch_warnings():
            # Raised for other pickle protocols, which are refused below anyway.
            warnings.simplefilter("ignore", UserWarning)
            found = torch.load(file, map_location="cpu", weights_only=True)
    except ConfigError:
        raise
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"weights: {file} cannot be read as {file.suffix or 'weights'} ({first_line(error)}); "
            "give safetensors, or a state dict that torch.save wrote."
        ) from error
    except Exception as error:  # A damaged pickle can raise any exception.
        raise ConfigError(
            f"weights: {file} is damaged, or no state dict that can be read without running code; "
            "it was not loaded: write it with torch.save(network.state_dict(), …), or as "
            "safetensors."
        ) from error
    what = f"a {type(found).__name__}"
    if isinstance(found, dict):
        odd = [key for key, value in found.items() if not isinstance(value, torch.Tensor)]
        if found and not odd:
            return dict(found)
        what = f"a dict whose {str(odd[0])!r} is not a tensor" if odd else "an empty dict"
    raise ConfigError(
        f"weights: {file} holds {what}, not a state dict; write it with "
        "torch.save(network.state_dict(), …)."
    )


def _unpacked(file: Path) -> int:
    with file.open("rb") as opened:
        packed = opened.read(len(ZIP)) == ZIP
    if not packed:
        return file.stat().st_size
    with zipfile.ZipFile(file) as archive:
        return sum(member.file_size for member in archive.infolist())


def _shown(name: Any) -> str:
    text = str(name)
    return text if text.isprintable() else repr(text)
