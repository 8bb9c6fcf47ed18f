"""Generator files: weights and everything needed to generate images from them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.runtime.artifacts import read_tensors, whole, write_tensors
from gradleak.training.generators import biggan, conditional_vae
from gradleak.training.generators.base import Generator


def save(
    path: str,
    kind: str,
    sizes: conditional_vae.Sizes | biggan.Sizes,
    weights: Mapping[str, np.ndarray],
    facts: Mapping[str, Any],
) -> None:
    """Write a generator of a `kind` of entries to a safetensors file; `facts` are on its origin."""
    write_tensors(path, weights, {"kind": kind, "sizes": asdict(sizes), **facts})


def read(path: str) -> Generator:
    """Read a generator on the CPU; `ArtifactError` if it is missing, damaged or of another kind."""
    tensors, metadata = read_tensors(path)
    with whole(path):
        module = _module(metadata)
        for name, array in tensors.items():
            if array.dtype.kind == "f" and array.dtype != np.float32:
                raise ValueError(f"array '{name}' is of type {array.dtype}")
        state = {name: torch.from_numpy(value) for name, value in tensors.items()}
        nn.Module.load_state_dict(module, state, assign=True)
    return module.eval().requires_grad_(False)


def _module(metadata: Mapping[str, Any]) -> Generator:
    if (kind := metadata.get("kind")) not in ("biggan", "conditional_vae"):
        raise ValueError(f"it holds no generator (kind: {kind})")
    sizes = metadata["sizes"]
    if kind == "biggan":
        with torch.device("meta"):
            return biggan.BigGan(biggan.Sizes.of(sizes))
    sizes["shape"] = tuple(sizes["shape"])
    # Small, and an embedding on "meta" imports torch.compile, which takes longer.
    with torch.random.fork_rng(devices=[]):
        return conditional_vae.Decoder(conditional_vae.Sizes(**sizes))
