"""Data sets as files: images and labels in one safetensors file, with its SHA-256 beside it.

A file is made by the pipeline (its header carries metadata, and a checksum file in the format of
``sha256sum`` stands beside it) or placed by hand: its header then has the keys ``dataset``,
``split`` and ``classes`` (a JSON list), or none. Provenance names the SHA-256 of either.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from gradleak.data import catalogue
from gradleak.errors import DataError
from gradleak.runtime.artifacts import METADATA_KEY, FilePath, again, atomic, write_tensors

BY_HAND = "by hand"
AGAIN = "delete it and ask Snakemake for it again"
REPLACE = "replace it, or delete it so that Snakemake makes it"


@dataclass(frozen=True)
class Dataset:
    """Images with their labels."""

    images: np.ndarray  # uint8 (N, C, H, W), in the data set's own order
    labels: np.ndarray  # int64 (N,), each from 0 to ``len(classes) - 1``
    classes: list[str]  # names of the classes
    dataset: str  # id in the catalogue
    split: str
    origin: str  # ``embedded``, ``official``, ``own folder`` or ``by hand``
    sha256: str = ""  # checksum of the file that it was read from; empty before it is saved

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """Images (K, C, H, W) and labels (K,) at `indices`; `DataError` for one out of range."""
        chosen = [int(index) for index in indices]
        for index in chosen:
            if not 0 <= index < len(self):
                raise DataError(
                    f"Index {index} is out of range: {self.dataset}-{self.split} has "
                    f"{len(self)} images, so choose from 0 to {len(self) - 1}."
                )
        return self.images[chosen], self.labels[chosen]

    def identity(self) -> dict[str, str]:
        """Return the provenance of the images: data set, split, origin, checksum."""
        return {key: getattr(self, key) for key in ("dataset", "split", "origin", "sha256")}


def sidecar(path: FilePath) -> Path:
    """Path of the checksum file that belongs to `path`."""
    return Path(f"{os.fspath(path)}.sha256")


def checksum(path: FilePath, algorithm: str = "sha256") -> str:
    """Hexadecimal checksum of a file; `DataError` if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path} cannot be read ({reason}); check its permissions.") from error


def save(path: FilePath, data: Dataset, sources: Mapping[str, str] | None = None) -> str:
    """Write a data set and its checksum file; return the checksum.

    `sources` are files that it was made from, with their checksums. Raises `DataError`, and writes
    nothing, if images or labels do not match the catalogue, and `ArtifactError` if the files cannot
    be written.
    """
    _check(Path(path), data, "check what it was made from")
    known = {key: getattr(data, key) for key in ("dataset", "split", "classes", "origin")}
    provenance = {"settings": {"dataset": data.dataset, "split": data.split}}
    provenance |= {"sources": dict(sources)} if sources else {}
    metadata = {"kind": "dataset", "provenance": provenance, **known}
    write_tensors(path, {"images": data.images, "labels": data.labels}, metadata)
    digest = checksum(path)
    with atomic(sidecar(path)) as temporary:
        temporary.write_text(f"{digest}  {Path(path).name}\n", encoding="utf-8")
    return digest


def is_by_hand(path: FilePath) -> bool:
    """Return whether `path` exists and was not made by this pipeline.

    An unreadable file counts as placed by hand unless a checksum file stands beside it: a rule must
    never overwrite what somebody copied there, even half of it.
    """
    if not Path(path).is_file():
        return False
    try:
        with safe_open(path, framework="numpy") as file:
            return METADATA_KEY not in (file.metadata() or {})
    except (SafetensorError, OSError):
        return not sidecar(path).is_file()


def load(path: FilePath, dataset: str, split: str) -> Dataset:
    """Read the file of a data set's split.

    Raises `DataError` if it is missing, truncated or altered, or holds arrays of another data set,
    shape or dtype, or labels out of range.
    """
    source = Path(path)
    if source.is_dir():
        raise DataError(f"{source} is a folder where a file should be; {REPLACE}.")
    if not source.is_file():
        raise DataError(
            f"{source} is missing; ask Snakemake for it, or put arrays of that name there by hand."
        )
    digest = checksum(source)
    _compare(source, digest)
    tensors, header = _read(source, digest)
    own = METADATA_KEY in header
    if own and not sidecar(source).is_file():
        raise DataError(
            f"{sidecar(source)} is missing, so {source} (SHA-256 {digest}) cannot be checked; "
            f"copy it as well, or delete the arrays and ask Snakemake for them again."
        )
    metadata = json.loads(header[METADATA_KEY]) if own else _by_hand(source, header, dataset, split)
    remedy = AGAIN if own else REPLACE
    for key, wanted in (("dataset", dataset), ("split", split)):
        if metadata[key] != wanted:
            raise DataError(
                f"{source} says that its {key} is '{metadata[key]}' where '{wanted}' is expected; "
                f"{remedy}."
            )
    known: dict[str, Any] = {**tensors, "classes": metadata["classes"]}
    data = Dataset(**known, dataset=dataset, split=split, origin=metadata["origin"], sha256=digest)
    _check(source, data, remedy)
    return data


def _compare(source: Path, found: str) -> None:
    if not sidecar(source).is_file():
        return
    text = sidecar(source).read_text(encoding="utf-8", errors="replace")
    match = re.match(r"[0-9a-f]{64}(?=\s|$)", text)
    if match is None:
        raise DataError(
            f"{sidecar(source)} holds no SHA-256 (64 hexadecimal digits first); delete it and "
            f"{source}, and ask Snakemake for them again."
        )
    if match[0] != found:
        raise DataError(
            f"{source} was truncated or altered: its SHA-256 is {found} where {match[0]} is "
            f"expected; {again(source)}, or copy it once more."
        )


def _read(source: Path, digest: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    try:
        with safe_open(source, framework="numpy") as file:
            if not {"images", "labels"} <= (names := set(file.keys())):
                raise DataError(
                    f"{source} holds {sorted(names)} where 'images' and 'labels' are expected; "
                    f"{REPLACE}."
                )
            tensors = {name: file.get_tensor(name) for name in ("images", "labels")}
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{source} is damaged or truncated ({error}; SHA-256 {digest}); {REPLACE}."
        ) from error


def _by_hand(source: Path, header: dict[str, str], dataset: str, split: str) -> dict[str, Any]:
    try:
        classes = json.loads(header.get("classes") or "[]")
    except json.JSONDecodeError:
        classes = None
    if not isinstance(classes, list):
        raise DataError(
            f"{source} has metadata 'classes' that is not a JSON list of names; {REPLACE}."
        )
    names = [str(name) for name in classes or range(catalogue.info(dataset).classes)]
    own: dict[str, Any] = {"dataset": dataset, "split": split, "classes": names, "origin": BY_HAND}
    return own | {key: header[key] for key in ("dataset", "split") if key in header}


def _check(path: Path, data: Dataset, remedy: str) -> None:
    for wrong in _faults(data):
        raise DataError(f"{path} {wrong}; {remedy}.")


def _faults(data: Dataset) -> Iterator[str]:
    images, labels, wanted = data.images, data.labels, catalogue.info(data.dataset).shape
    for name, array, dtype in (("images", images, np.uint8), ("labels", labels, np.int64)):
        if array.dtype != dtype:
            yield f"holds {name} of type {array.dtype} where {np.dtype(dtype)} is expected"
    if images.ndim != 4 or images.shape[1:] != wanted:
        sizes = ", ".join(map(str, wanted))
        yield f"holds images of shape {images.shape} where (N, {sizes}) is expected"
    if labels.shape != (len(images),) or len(labels) == 0:
        yield (
            f"holds {len(images)} images and labels of shape {labels.shape} where one label for "
            "each of at least one image is expected"
        )
    last = len(data.classes) - 1
    for index in np.flatnonzero((labels < 0) | (labels > last)):
        yield f"has label {labels[index]} at index {index} where 0 to {last} is expected"
