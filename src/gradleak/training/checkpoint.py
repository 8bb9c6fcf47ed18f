"""Checkpoints of training runs: written whole or not at all, and never mistaken for another's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import read_tensors, write_tensors

Arrays = dict[str, np.ndarray]
Found = TypeVar("Found")
GROUPS = ("weights", "momentum", "best")


@dataclass
class State:
    """State of a training run after some epochs: everything that the next one depends on.

    Each epoch seeds its own generator for order and augmentation, so no generator state is kept.
    """

    epoch: int = 0  # epochs done
    weights: Arrays = field(default_factory=dict)  # parameters and running statistics
    momentum: Arrays = field(default_factory=dict)  # SGD's buffers of the parameters
    # `weights` after the epoch of the best validation accuracy
    best: Arrays = field(default_factory=dict)
    # one record an epoch, as in the curve's CSV
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Identity:
    """Training run that a checkpoint belongs to."""

    network: dict[str, Any]  # name of the chain, hash of its description and initial weights
    data: dict[str, Any]  # data set, split, checksum and the part used
    recipe: dict[str, Any]  # settings, seed and arithmetic

    def record(self) -> dict[str, dict[str, Any]]:
        """Convert to JSON values."""
        return {"network": self.network, "data": self.data, "recipe": self.recipe}


WORDS = {"network": "another network", "data": "another data set", "recipe": "other settings"}


def write(
    path: Path, identity: Identity, groups: Mapping[str, Arrays], record: Mapping[str, Any]
) -> None:
    """Write arrays (by group and name) and JSON values; an earlier file stays until complete."""
    tensors = {
        f"{group}/{name}": value for group, named in groups.items() for name, value in named.items()
    }
    write_tensors(path, tensors, {"identity": identity.record(), **record})


def read(
    path: Path, identity: Identity, unpack: Callable[[dict[str, Arrays], dict[str, Any]], Found]
) -> Found | None:
    """Read the checkpoint at `path`, which must belong to `identity`; None without one.

    `unpack` builds a state from groups and record; a key that it misses counts as damage. Raises
    `ArtifactError` if the file is damaged, or of another network, data set or recipe.
    """
    if not path.exists():
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
    for part, ours in identity.record().items():
        difference = _difference(theirs[part], ours)
        if difference:
            raise ArtifactError(
                f"The checkpoint {path} is of {WORDS[part]} ({difference}); delete it, and "
                "training starts anew."
            )
    return found


def save(path: Path, identity: Identity, state: State) -> None:
    """Write the checkpoint of a training run."""
    groups = {group: getattr(state, group) for group in GROUPS}
    write(path, identity, groups, {"epoch": state.epoch, "rows": state.rows})


def load(path: Path, identity: Identity) -> State:
    """Read the checkpoint of a training run, as `read`; a fresh state without one."""

    def unpack(groups: dict[str, Arrays], record: dict[str, Any]) -> State:
        return State(
            int(record["epoch"]), rows=record["rows"], **{group: groups[group] for group in GROUPS}
        )

    return read(path, identity, unpack) or State()


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """First key in which two records differ, with both values; empty if they are equal."""
    for key in ours:
        if theirs.get(key) != ours[key]:
            return f"{key}: {theirs.get(key)}, not {ours[key]}"
    return ""
