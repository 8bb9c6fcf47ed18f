"""Checkpoints of training runs: written whole or not at all, and never mistaken for another's."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gradleak.errors import ArtifactError, GradleakError
from gradleak.runtime.artifacts import read_tensors, write_tensors

Arrays = dict[str, np.ndarray]
OnRows = Callable[[list[dict[str, Any]]], None]
Found = TypeVar("Found")
GROUPS = ("weights", "momentum", "best")
# Curve of a failed training run, beside its checkpoints.
KEPT_CURVE = "curve.csv"


@dataclass
class State:
    """State of a training run after some epochs: everything that the next one depends on.

    Each epoch seeds its own generator for order and augmentation, so no generator state is kept.
    """

    epoch: int = 0  # epochs done
    weights: Arrays = field(default_factory=dict)  # parameters and running statistics
    momentum: Arrays = field(default_factory=dict)  # the optimiser's moments of the parameters
    best: Arrays = field(default_factory=dict)  # `weights` of the best validation accuracy
    rows: list[dict[str, Any]] = field(default_factory=list)  # of the curve, one an epoch


@dataclass(frozen=True)
class Identity:
    """Training run that a checkpoint belongs to."""

    network: dict[str, Any]  # name of the chain, hash of its description and initial weights
    data: dict[str, Any]  # data set, split, checksum and the part used
    recipe: dict[str, Any]  # settings, seed and arithmetic


WORDS = {"network": "another network", "data": "another data set", "recipe": "other settings"}


def write(
    path: Path, identity: Identity, groups: Mapping[str, Arrays], record: Mapping[str, Any]
) -> None:
    """Write arrays (by group and name) and JSON values; an earlier file stays until complete."""
    tensors = {
        f"{group}/{name}": value for group, named in groups.items() for name, value in named.items()
    }
    write_tensors(path, tensors, {"identity": vars(identity), **record})


def read(
    path: Path | None,
    identity: Identity,
    unpack: Callable[[dict[str, Arrays], dict[str, Any]], Found],
) -> Found | None:
    """Read the checkpoint at `path`, which must belong to `identity`; None without one.

    `unpack` builds a state from groups and record; a key that it misses counts as damage. Raises
    `ArtifactError` if the file is damaged, or of another network, data set or recipe.
    """
    if path is None or not path.exists():
        return None
    try:
        tensors, metadata = read_tensors(path)
        groups: dict[str, Arrays] = defaultdict(dict)
        for key, value in tensors.items():
            group, name = key.split("/", 1)
            groups[group][name] = value
        found = unpack(groups, metadata)
        theirs = {part: dict(metadata["identity"][part]) for part in WORDS}
    except (ArtifactError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"The checkpoint {path} is damaged ({error}); delete it, and training starts anew."
        ) from error
    for part, words in WORDS.items():
        for key, ours in getattr(identity, part).items():
            if (other := theirs[part].get(key)) != ours:
                raise ArtifactError(
                    f"The checkpoint {path} is of {words} ({key}: {other}, not {ours}); delete it, "
                    "and training starts anew."
                )
    return found


def save(path: Path, identity: Identity, state: State) -> None:
    """Write the checkpoint of a training run."""
    groups = {group: getattr(state, group) for group in GROUPS}
    write(path, identity, groups, {"epoch": state.epoch, "rows": state.rows})


def load(path: Path | None, identity: Identity) -> State:
    """Read the checkpoint of a training run, as `read`; a fresh state without one."""

    def unpack(groups: dict[str, Arrays], record: dict[str, Any]) -> State:
        arrays = {group: groups[group] for group in GROUPS}
        return State(int(record["epoch"]), rows=record["rows"], **arrays)

    return read(path, identity, unpack) or State()


def epochs(
    path: Path | None, done: int, last: int, every: int, save: Callable[[Path], None]
) -> Iterator[int]:
    """Iterate from `done` to `last`; `save` after multiples of `every` and the last to `path`."""
    for epoch in range(done, last):
        yield epoch
        if path is not None and ((epoch + 1) % every == 0 or epoch + 1 == last):
            save(path)


@contextmanager
def curve_kept(folder: Path, write: Callable[[Path], None]) -> Iterator[None]:
    """Write the curve into `folder` if training fails, since Snakemake removes its outputs."""
    try:
        yield
    except GradleakError:
        write(folder / KEPT_CURVE)
        raise


def clear(folder: Path, *checkpoints: Path) -> None:
    """Delete checkpoints and the curve kept beside them, and their folder if it is empty then."""
    for path in (folder / KEPT_CURVE, *checkpoints):
        path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
