"""Checkpoints of training runs: written whole or not at all, and never mistaken for another's."""

import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from gradleak.errors import ArtifactError, GradleakError
from gradleak.runtime import job_records
from gradleak.runtime.artifacts import read_tensors, write_tensors

LOG = logging.getLogger("gradleak")
Arrays = dict[str, np.ndarray]
OnRows = Callable[[list[dict[str, Any]]], None]
GROUPS = ("weights", "momentum", "best")
# Curve of a failed training run, beside its checkpoints.
KEPT_CURVE = "curve.csv"


@dataclass(kw_only=True)
class State(ABC):
    """State of a training run after some epochs: everything that the next one depends on.

    Each epoch seeds its own generators, so no state of theirs is kept.
    """

    done: int = 0  # epochs, or rounds of a federation
    rows: list[dict[str, Any]] = field(default_factory=list)  # of the curve

    @abstractmethod
    def groups(self) -> dict[str, Arrays]:
        """Arrays as stored in a checkpoint."""

    def record(self) -> dict[str, Any]:
        """Other fields as JSON values."""
        return {"done": self.done, "rows": self.rows}

    @classmethod
    @abstractmethod
    def unpack(cls, groups: Mapping[str, Arrays], record: Mapping[str, Any]) -> Self:
        """Invert `groups` and `record`."""


@dataclass(kw_only=True)
class Epochs(State):
    """State of the training of one network; its curve has one row an epoch."""

    weights: Arrays = field(default_factory=dict)  # parameters and running statistics
    momentum: Arrays = field(default_factory=dict)  # the optimiser's moments of the parameters
    best: Arrays = field(default_factory=dict)  # `weights` of the best validation accuracy

    def groups(self) -> dict[str, Arrays]:
        """See `State`."""
        return {group: getattr(self, group) for group in GROUPS}

    @classmethod
    def unpack(cls, groups: Mapping[str, Arrays], record: Mapping[str, Any]) -> Self:
        """See `State`."""
        arrays = {group: groups[group] for group in GROUPS}
        return cls(done=int(record["done"]), rows=record["rows"], **arrays)


@dataclass(frozen=True)
class Identity:
    """Training run that a checkpoint belongs to."""

    network: dict[str, Any]  # name of the chain, hash of its description and initial weights
    data: dict[str, Any]  # data set, split, checksum and the part used
    recipe: dict[str, Any]  # settings, seed and arithmetic


WORDS = {"network": "another network", "data": "another data set", "recipe": "other settings"}
Found = TypeVar("Found", bound=State)


def load(path: Path | None, identity: Identity, begun: Found, who: str, unit: str) -> Found:
    """Read the checkpoint at `path`, which must belong to `identity`; `begun` without one.

    `who` goes on, and `unit` is ``epoch`` or ``round``, in the log. Raises `ArtifactError` if the
    file is damaged, or of another network, data set or recipe.
    """
    if path is None or not path.exists():
        return begun
    try:
        tensors, metadata = read_tensors(path)
        groups: dict[str, Arrays] = defaultdict(dict)
        for key, value in tensors.items():
            group, name = key.split("/", 1)
            groups[group][name] = value
        found = begun.unpack(groups, metadata)
        theirs = {part: dict(metadata["identity"][part]) for part in WORDS}
        job_records.go_on_after(metadata.get("spent", {}))
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
    LOG.info("%s goes on after %s %d, from %s", who, unit, found.done, path)
    return found


def epochs(
    path: Path | None,
    identity: Identity,
    state: State,
    recipe: Any,
    on_rows: OnRows,
    pack: Callable[[], None] = lambda: None,
) -> Iterator[int]:
    """Iterate over the epochs of `recipe` that `state` lacks; write checkpoints to `path`.

    After each, `on_rows` is called with the curve so far. Before a checkpoint, after multiples of
    `recipe.checkpoint` and the last, `pack` puts weights into `state`.
    """
    for epoch in range(state.done, recipe.epochs):
        yield epoch
        state.done = epoch + 1
        on_rows(state.rows)
        if path is not None and (
            state.done % recipe.checkpoint == 0 or state.done == recipe.epochs
        ):
            pack()
            arrays = {
                f"{g}/{name}": v for g, own in state.groups().items() for name, v in own.items()
            }
            told = {"identity": vars(identity), "spent": job_records.spent()}
            write_tensors(path, arrays, told | state.record())


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
