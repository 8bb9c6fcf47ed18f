"""BigGAN-deep's published weights, read from a user's file."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from gradleak.errors import DataError
from gradleak.training.generators.biggan import BigGan, Sizes

PUBLISHED = (
    "https://s3.amazonaws.com/models.huggingface.co/biggan/biggan-deep-256-pytorch_model.bin"
)
REMEDY = f"download {PUBLISHED} and set generators: NAME: weights to where it lies"

Tensors = Mapping[str, torch.Tensor]


def convert(path: str, sizes: Sizes, truncation: float = 1.0) -> dict[str, np.ndarray]:
    """State dict of `BigGan` of some `sizes` from the published file.

    Parameters
    ----------
    path
        A PyTorch state dict with the keys of huggingface's pytorch-pretrained-BigGAN, read
        without running any of its code.
    truncation
        Truncation in (0, 1] of the norms' statistics, interpolated linearly between those in the
        file.

    Raises
    ------
    DataError
        If the file is missing, not a state dict, or of another network.
    """
    state = _read(path)
    found, wanted = {}, dict(_keys(sizes))
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in BigGan(sizes).state_dict().items()}
    for name, key in wanted.items():
        try:
            value = _value(state, key, truncation, sizes.statistics)
        except KeyError as error:
            raise DataError(
                f"{path} lacks {error.args[0]}, so it is no BigGAN-deep-256; {REMEDY}."
            ) from None
        if tuple(value.shape) != shapes[name]:
            raise DataError(
                f"{path} has {key} of {list(value.shape)} where {list(shapes[name])} is expected, "
                f"so it is no BigGAN-deep-256; {REMEDY}."
            )
        if not torch.isfinite(value).all():
            raise DataError(f"{path} has {key} with NaN or infinity; {REMEDY}.")
        found[name] = value.float().contiguous().numpy()
    return found


def _read(path: str) -> Tensors:
    """Tensors in the file, by name; `DataError` for any other content."""
    if not Path(path).is_file():
        raise DataError(
            f"{path} is missing: BigGAN's weights are not downloaded by themselves; {REMEDY}."
        )
    try:
        with warnings.catch_warnings():
            # The error covers PyTorch's warnings on an unknown file.
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # A damaged pickle may raise anything.
        reason = str(error).strip().partition("\n")[0].rstrip(".:")
        raise DataError(f"{path} is no file of weights alone ({reason}); {REMEDY}.") from error
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in state.items()
    ):
        raise DataError(f"{path} holds something else than tensors by name; {REMEDY}.")
    return state


def _keys(sizes: Sizes) -> Iterator[tuple[str, str]]:
    """Name of each tensor of `BigGan`, and its key in the file."""
    yield "embedding.weight", "embeddings.weight"
    yield from _layer("enter", "generator.gen_z", bias=True)
    for number in range(len(sizes.blocks)):
        # Attention counts among the file's layers.
        block = f"generator.layers.{number + (number >= sizes.attention)}"
        for k in range(4):
            yield from _layer(f"blocks.{number}.convolutions.{k}", f"{block}.conv_{k}", bias=True)
            norm, theirs = f"blocks.{number}.norms.{k}", f"{block}.bn_{k}"
            yield from _statistics(norm, theirs)
            for kind in ("scale", "offset"):
                yield from _layer(f"{norm}.{kind}", f"{theirs}.{kind}", bias=False)
    attention = f"generator.layers.{sizes.attention}"
    yield "attention.gain", f"{attention}.gamma"
    names = {"query": "theta", "key": "phi", "value": "g", "leave": "o_conv"}
    for ours, theirs in names.items():
        yield from _layer(f"attention.{ours}", f"{attention}.snconv1x1_{theirs}", bias=False)
    yield from _statistics("norm", "generator.bn")
    yield "norm.weight", "generator.bn.weight"
    yield "norm.bias", "generator.bn.bias"
    yield from _layer("leave", "generator.conv_to_rgb", bias=True)


def _layer(ours: str, theirs: str, *, bias: bool) -> Iterator[tuple[str, str]]:
    yield f"{ours}.weight", f"{theirs}.weight_orig"
    if bias:
        yield f"{ours}.bias", f"{theirs}.bias"


def _statistics(ours: str, theirs: str) -> Iterator[tuple[str, str]]:
    yield f"{ours}.mean", f"{theirs}.running_means"
    yield f"{ours}.variance", f"{theirs}.running_vars"


def _value(state: Tensors, key: str, truncation: float, statistics: int) -> torch.Tensor:
    """A tensor in `BigGan`'s form."""
    if key.endswith("_orig"):
        return _divided(state, key.removesuffix("_orig"))
    value = state[key]
    if key.endswith(("running_means", "running_vars")):
        return _at(value, truncation, statistics)
    return value


def _divided(state: Tensors, key: str) -> torch.Tensor:
    """W / (uᵀ W v), rows of W by outputs, as PyTorch's spectral norm at inference."""
    weight = state[f"{key}_orig"]
    left, right = state[f"{key}_u"], state[f"{key}_v"]
    rows = weight.flatten(1)
    if left.shape != rows.shape[:1] or right.shape != rows.shape[1:]:
        return weight.new_empty(0)
    return weight / (left @ rows @ right)


def _at(rows: torch.Tensor, truncation: float, statistics: int) -> torch.Tensor:
    """Statistics (C,) at a truncation, from those (statistics, C) at even steps from 0 to 1."""
    if len(rows) != statistics:
        return rows
    place = truncation * (statistics - 1)
    below = min(math.floor(place), statistics - 2)
    return torch.lerp(rows[below], rows[below + 1], place - below)
