"""Gradient files: what clients share, as written by `gradleak.client.capture` and defences."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from gradleak.models.chain import Chain
from gradleak.models.initial import parameter_shapes
from gradleak.models.locks import KEY
from gradleak.runtime.artifacts import FLOATS, check_array, read_tensors, whole
from gradleak.runtime.metadata import Amount, Metadata, Place
from gradleak.settings.fields import Precision

# Entries beside gradients if labels are granted: labels of the loss and of the data set.
LABELS = ("label", "class")


class _Unusable(Metadata):
    chain: str
    seed: Place
    batch: Place
    reason: str


class _Metadata(Metadata):
    seeds: Amount
    images: Amount
    batch: Amount
    low: float
    high: float
    loss: str
    precision: Precision | None = None
    unusable: list[_Unusable] | None = None
    fingerprints: dict[str, list[str]] | None = None
    mode: dict[str, str] | None = None


def read(path: str, chains: Iterable[Chain] = ()) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read gradients and their metadata; a gradient may be NaN, and ``unusable`` says why.

    The file must hold gradients of `chains`, in the shapes of their parameters. Raises
    `ArtifactError` if it is missing, damaged, or of another kind.
    """
    tensors, metadata = read_tensors(path, _Metadata)
    with whole(path):
        runs = (metadata["seeds"], metadata["images"])
        precision = metadata.get("precision")
        for key, array in tensors.items():
            name = key.partition("/")[2]
            if name in LABELS:
                check_array(tensors, key, ["int64"], (*runs, metadata["batch"]))
            elif array.shape[:2] != runs:
                raise ValueError(f"array '{key}' has no value for each run")
            elif not name.endswith(KEY):
                check_array(tensors, key, [precision] if precision else FLOATS, array.shape)
        for chain in chains:
            shapes = {f"{chain.name}/{n}": shape for n, shape in parameter_shapes(chain).items()}
            found = [key for key in shapes if key in tensors]
            if not found:
                raise ValueError(f"it has no gradient of {chain.name}")
            for key in found:
                check_array(tensors, key, FLOATS, (*runs, *shapes[key]))
            marks = metadata.get("fingerprints", {}).get(chain.name)
            if marks is not None and len(marks) < runs[0]:
                raise ValueError(f"fingerprints.{chain.name} lacks a draw of weights")
    return tensors, metadata
