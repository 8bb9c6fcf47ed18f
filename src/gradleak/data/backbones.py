"""Weights of the networks whose features LPIPS compares: read, download and check their files.

The files lie in the folder ``lpips`` of ``data.root``. They are of torchvision's networks, trained
on ImageNet; only the convolutions (``features.*``) are used.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from gradleak.data.arrays import checksum
from gradleak.data.download import RemoteFile, check, fetch
from gradleak.errors import DataError
from gradleak.runtime.artifacts import FilePath, write_tensors

if TYPE_CHECKING:
    import torch

FOLDER = "lpips"
ADDRESS = "https://download.pytorch.org/models"
PREFIX = "features."
UNREADABLE = (
    SafetensorError, pickle.UnpicklingError, RuntimeError, ValueError, TypeError, KeyError,
    EOFError, OSError,
)  # fmt: skip


@dataclass(frozen=True)
class Backbone:
    """A network that LPIPS is defined on."""

    words: str  # its name in text
    function: str  # its name in ``torchvision.models``
    file: str  # torchvision's weights file; its name ends in the first digits of its SHA-256

    def remote(self, mirror: str | None = None) -> RemoteFile:
        """The file to download, from torchvision's address or from `mirror`."""
        url = f"{(mirror or ADDRESS).rstrip('/')}/{self.file}"
        digest = Path(self.file).stem.rpartition("-")[2]
        return RemoteFile(self.file, (url,), digest, "sha256")


BACKBONES = {
    "alex": Backbone("AlexNet", "alexnet", "alexnet-owt-7be5be79.pth"),
    "squeeze": Backbone("SqueezeNet 1.1", "squeezenet1_1", "squeezenet1_1-b8a52dc0.pth"),
    "vgg": Backbone("VGG-16", "vgg16", "vgg16-397923af.pth"),
}


def file_names(network: str) -> tuple[str, str, str]:
    """Possible names of the weights file: ours, torchvision's, its convolutions alone."""
    backbone = BACKBONES[network]
    return f"{network}.safetensors", backbone.file, f"{backbone.function}_features.pth"


def present(folder: FilePath) -> list[str]:
    """Files of weights in `folder`, the first of `file_names` for each network that has one."""
    places = ([Path(folder) / name for name in file_names(network)] for network in BACKBONES)
    return [str(place) for each in places for place in list(filter(Path.is_file, each))[:1]]


def by_network(paths: Iterable[str]) -> dict[str, str]:
    """Network of each file, by the file's name."""
    return {n: path for n, path in product(BACKBONES, paths) if Path(path).name in file_names(n)}


def missing(network: str) -> str:
    """Message that weights are missing, and how to get them."""
    backbone = BACKBONES[network]
    return (
        f"The weights of {backbone.words} are missing: ask Snakemake for "
        f"{FOLDER}/{network}.safetensors in data.root (data/{FOLDER}/{network}.safetensors by "
        f"default), or put torchvision's {backbone.file} into that folder."
    )


def empty(network: str) -> torch.nn.Sequential:
    """Convolutions of a network, without memory for its weights."""
    import torch
    import torchvision

    with torch.device("meta"):
        model = getattr(torchvision.models, BACKBONES[network].function)(weights=None)
    features: torch.nn.Sequential = model.features
    return features


def read(path: FilePath, network: str) -> dict[str, np.ndarray]:
    """Weights and biases of the convolutions, float32, under torchvision's names.

    `path` is a safetensors file, or one of torchvision's, which is read without running its code;
    `network` is one of `BACKBONES`. Raises `DataError` if the file is missing, damaged or of
    another network.
    """
    source, words = Path(path), BACKBONES[network].words
    ask = f"ask Snakemake for {FOLDER}/{network}.safetensors"
    if not source.is_file():
        raise DataError(f"{source} is missing; {ask} in data.root.")
    try:
        found = load_file(source) if source.suffix == ".safetensors" else _torch(source)
    except UNREADABLE as error:
        raise DataError(
            f"{source} cannot be read as weights of {words}: it is damaged or holds something "
            f"else; replace it, or delete it and {ask}."
        ) from error
    weights = {}
    for name, expected in empty(network).state_dict().items():
        key = PREFIX + name
        if wrong := _difference(found.get(key), tuple(expected.shape)):
            raise DataError(
                f"{source} does not hold the weights of {words}: {key} {wrong}; put the right "
                f"file there, or delete it and {ask}."
            )
        weights[key] = found[key]
    return weights


def make(path: FilePath, network: str, mirror: str | None) -> None:
    """Write the safetensors file of a network, from torchvision's.

    A torchvision file in the folder is used; else the official one is downloaded, and deleted
    afterwards, since VGG-16's has 528 MB. Raises `DataError` if the official file cannot be
    downloaded or was altered, or a file in the folder is of another network, and `ArtifactError` if
    `path` cannot be written.
    """
    target, remote = Path(path), BACKBONES[network].remote(mirror)
    _, official, features = (target.parent / name for name in file_names(network))
    by_hand = next((place for place in (official, features) if place.is_file()), None)
    source = by_hand or fetch(remote, target.parent)
    if source == official:
        check(official, remote)
    provenance = {"settings": {"network": network}, "sources": {source.name: checksum(source)}}
    write_tensors(target, read(source, network), {"kind": "backbone", "provenance": provenance})
    if by_hand is None:
        source.unlink()


def _torch(path: Path) -> dict[str, np.ndarray]:
    import torch

    found = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict):
        raise TypeError(f"{type(found).__name__} instead of named tensors")
    return {key: value.numpy() for key, value in found.items() if key.startswith(PREFIX)}


def _difference(found: np.ndarray | None, shape: tuple[int, ...]) -> str:
    if found is None:
        return "is missing"
    if found.shape != shape:
        return f"has shape {found.shape} where {shape} is expected"
    if found.dtype != np.float32:
        return f"has type {found.dtype} where float32 is expected"
    return "" if np.isfinite(found).all() else "holds NaN or infinity"
