"""Checkpoints of a training: written whole or not at all, and never taken for another's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gradleak.artifacts import read_tensors, write_tensors
from gradleak.errors import ArtifactError

Arrays = dict[str, np.ndarray]
Found = TypeVar("Found")
GROUPS = ("weights", "momentum", "best")


@dataclass
class State:
    """A training after some epochs: all that the next one depends on.

    Each epoch draws its order and its augmentation from a generator of its own, so no state of a
    generator is kept.

    Attributes
    ----------
    epoch
        Epochs done.
    weights, momentum
        Parameters with running statistics, and SGD's buffers of the parameters.
    best
        `weights` after the epoch of the best validation accuracy.
    rows
        One record an epoch: what the curve's CSV holds.
    """

    epoch: int = 0
    weights: Arrays = field(default_factory=dict)
    momentum: Arrays = field(default_factory=dict)
    best: Arrays = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Identity:
    """Whose checkpoint a file is.

    Attributes
    ----------
    network
        Name of the chain, and a hash of its description and initial weights.
    data
        Data set, split, checksum and what is taken of it.
    recipe
        Settings of the training, seed and arithmetic.
    """

    network: dict[str, Any]
    data: dict[str, Any]
    recipe: dict[str, Any]

    def record(self) -> dict[str, dict[str, Any]]:
        """As JSON holds it."""
        return {"network": self.network, "data": self.data, "recipe": self.recipe}


WORDS = {"network": "another network", "data": "another data set", "recipe": "other settings"}


def write(
    path: Path, identity: Identity, groups: Mapping[str, Arrays], record: Mapping[str, Any]
) -> None:
    """Write a checkpoint; an earlier one stays until the new one is whole.

    Parameters
    ----------
    path, identity
        The file, and whose it is.
    groups
        Arrays by group and name.
    record
        What JSON can hold, beside them.
    """
    tensors = {
        f"{group}/{name}": value for group, named in groups.items() for name, value in named.items()
    }
    write_tensors(path, tensors, {"identity": identity.record(), **record})


def read(
    path: Path, identity: Identity, unpack: Callable[[dict[str, Arrays], dict[str, Any]], Found]
) -> Found | None:
    """Read a checkpoint; None where there is none.

    Parameters
    ----------
    path, identity
        The file, and whose it must be.
    unpack
        Makes a state of groups and record. A key that it misses counts as damage.

    Raises
    ------
    ArtifactError
        If the file is damaged, or of another network, data set or recipe.
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
    """Write the checkpoint of a training."""
    groups = {group: getattr(state, group) for group in GROUPS}
    write(path, identity, groups, {"epoch": state.epoch, "rows": state.rows})


def load(path: Path, identity: Identity) -> State:
    """Read the checkpoint of a training; a fresh state where there is none.

    Raises
    ------
    ArtifactError
        See `read`.
    """

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
