"""Load a user's weights: only tensors are read, and only those that fit."""

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gradleak.errors import ConfigError
from gradleak_audit.read.model_checks import first_line

SAFETENSORS = ".safetensors"
# First bytes of PyTorch's zip-based format.
ZIP = b"PK\x03\x04"
# A file may unpack to this multiple of the network's state, since float64 takes four times as much
# as half precision and views are stored with their whole storage, plus SLACK bytes. Otherwise an
# archive could exhaust the memory.
FACTOR, SLACK = 8, 2**26


def load_weights(network: nn.Module, path: str) -> None:
    """Load weights into a network, which stays unmodified on failure.

    Floating-point tensors are converted to the network's precision. The file is safetensors or a
    state dict of `torch.save`; of the latter only tensors are read, and no code is run. Raises
    `ConfigError` if the file is missing, not a regular file, damaged, far larger than the network,
    does not hold a state dict of this network, or holds unsupported tensors: integer, complex,
    sparse, quantised, without values, or out of range.
    """
    file = Path(path)
    for wrong, why in (
        (file.is_dir(), "is a folder; give the file in it that holds them"),
        (not file.exists(), "does not exist; correct the path, or take weights out"),
        (not file.is_file(), "is no regular file but a pipe or device; give a file"),
    ):
        if wrong:
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
    taken = {key: _taken(f"{_shown(key)} of {path}", found[key], own[key]) for key in own}
    network.load_state_dict(taken)


def _taken(what: str, value: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Convert a stored tensor to the type of the network's, if only precision is lost."""
    if why := _why_not(value, own):
        raise ConfigError(f"weights: {what} {why}.")
    return value.detach().to(own.dtype)


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
                return (
                    f"({kind}) holds numbers that overflow {dtype}; give weights within its range"
                )
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
        what = f"a dict whose {str(odd[0])!r} is no tensor" if odd else "an empty dict"
    raise ConfigError(
        f"weights: {file} holds {what}, not a state dict; write it with "
        "torch.save(network.state_dict(), …)."
    )


def _unpacked(file: Path) -> int:
    """Bytes that a file takes in memory: its own size, or the sizes listed in an archive."""
    with file.open("rb") as opened:
        packed = opened.read(len(ZIP)) == ZIP
    if not packed:
        return file.stat().st_size
    with zipfile.ZipFile(file) as archive:
        return sum(member.file_size for member in archive.infolist())


def _shown(name: Any) -> str:
    """Return a name on one line, whatever it holds."""
    text = str(name)
    return text if text.isprintable() else repr(text)
