"""BigGAN-deep's published weights, read from a user's file."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from gradleak.errors import DataError
from gradleak.training.generators.biggan import BigGan, Sizes

PUBLISHED = (
    "https://s3.amazonaws.com/models.huggingface.co/biggan/biggan-deep-256-pytorch_model.bin"
)
REMEDY = f"download {PUBLISHED} and set generators: NAME: weights to where it lies"

# Names of parts of `BigGan`, and of its attention, in the file.
HEADS = {
    "embedding": "embeddings", "enter": "generator.gen_z", "norm": "generator.bn",
    "leave": "generator.conv_to_rgb",
}  # fmt: skip
ATTENTION = {
    "gain": "gamma", "query": "snconv1x1_theta", "key": "snconv1x1_phi", "value": "snconv1x1_g",
    "leave": "snconv1x1_o_conv",
}  # fmt: skip

Tensors = Mapping[str, torch.Tensor]


def convert(path: str, sizes: Sizes, truncation: float = 1.0) -> dict[str, np.ndarray]:
    """State dict of `BigGan` of some `sizes` from the published file.

    The file is a PyTorch state dict with the keys of huggingface's pytorch-pretrained-BigGAN, read
    without running any of its code. The norms' statistics are those of a `truncation` in (0, 1],
    interpolated linearly. Raises `DataError` if the file is missing, no state dict, or of another
    network.
    """
    state = _read(path)
    found: dict[str, np.ndarray] = {}
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in BigGan(sizes).state_dict().items()}
    for name, shape in shapes.items():
        key = _key(name, sizes.attention)
        try:
            value = _value(state, key, truncation, sizes.statistics)
        except KeyError as error:
            raise DataError(
                f"{path} lacks {error.args[0]}, so it is no BigGAN-deep-256; {REMEDY}."
            ) from None
        if tuple(value.shape) != shape:
            raise DataError(
                f"{path} has {key} of {list(value.shape)} where {list(shape)} is expected, "
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


def _key(name: str, attention: int) -> str:
    """Key in the file of a tensor of `BigGan`."""
    head, *rest = name.split(".")
    if head == "blocks":
        number, kind, k, *rest = rest
        # Attention counts among the file's layers.
        place = int(number) + (int(number) >= attention)
        head = f"generator.layers.{place}.{'conv' if kind == 'convolutions' else 'bn'}_{k}"
    elif head == "attention":
        head, rest[0] = f"generator.layers.{attention}", ATTENTION[rest[0]]
    else:
        head = HEADS[head]
    plain = head in ("embeddings", "generator.bn")
    last = {"mean": "running_means", "variance": "running_vars"}
    last |= {} if plain else {"weight": "weight_orig"}
    return ".".join([head, *(last.get(part, part) for part in rest)])


def _value(state: Tensors, key: str, truncation: float, statistics: int) -> torch.Tensor:
    if key.endswith("_orig"):
        return _divided(state, key.removesuffix("_orig"))
    running = key.endswith(("running_means", "running_vars"))
    return _at(state[key], truncation, statistics) if running else state[key]


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
