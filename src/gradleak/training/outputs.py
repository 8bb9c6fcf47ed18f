"""Settings of training runs and their outputs: model file, curves, accuracies, clients' files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from gradleak.client.client_keys import ClientFile
from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError, GradleakError
from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.models.locks import private, public
from gradleak.runtime.artifacts import write_rows
from gradleak.training.checkpoint import Arrays
from gradleak.training.data import Split, divide
from gradleak.training.learner import Learner
from gradleak.training.recipe import Recipe

CURVE = (
    "model",
    "seed",
    "epoch",
    "rate",
    "train_loss",
    "train_accuracy",
    "validation_loss",
    "validation_accuracy",
    "client",
)
SUMMARY = (
    "model",
    "seed",
    "images",
    "epochs",
    "best_epoch",
    "validation_accuracy",
    "test_accuracy",
    "train",
    "validation",
    "test",
    "arithmetic",
    "device",
    "regime",
    "client",
    "dropped",
)
# Curve of a failed training run, beside its checkpoints.
KEPT_CURVE = "curve.csv"
PARTS = ("train", "validation", "test")


def recipe_of(settings: Mapping[str, Any]) -> Recipe:
    """Recipe from an entry of ``trainings``, amounts as numbers."""
    known = {field.name for field in fields(Recipe)}
    chosen = {key: value for key, value in settings.items() if key in known}
    return Recipe(**{**chosen, "milestones": tuple(chosen["milestones"])})


def split_of(data: Dataset, settings: Mapping[str, Any], device: torch.device) -> Split:
    """Images for an entry of ``trainings``, amounts as numbers."""
    return divide(
        data,
        {part: settings[part] for part in PARTS},
        seed=settings["seed"],
        offset=settings["offset"],
        std=settings["std"],
        device=device,
        size=settings["size"],
        resize=settings["resize"],
    )


def source_of(data: Dataset, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Identity of the images in a checkpoint."""
    chosen = {key: settings[key] for key in ("seed", "offset", "std", "size", "resize")}
    return {**data.identity(), **chosen}


def networks(models: files.ModelFile, seeds: int) -> Iterator[tuple[Chain, int]]:
    """Each chain under each seed."""
    for chain in models.chains:
        for seed in range(seeds):
            yield chain, seed


def check(chain: Chain, data: Dataset, split: Split) -> None:
    """Raise `ConfigError` for a network that does not fit the images or their number of classes."""
    if split.train.shape != chain.input:
        raise ConfigError(
            f"{chain.name} takes images of {list(chain.input)}, but {data.dataset} has "
            f"{list(split.train.shape)}; choose another data set, size or model."
        )
    if chain.classes < len(data.classes):
        raise ConfigError(
            f"{chain.name} has {chain.classes} outputs, but {data.dataset} has "
            f"{len(data.classes)} classes; give it as many outputs."
        )


class HasRows(Protocol):
    """Result of a training run."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of its curve."""


Found = TypeVar("Found", bound=HasRows, covariant=True)


class Runnable(Protocol[Found]):
    """Training of one network."""

    def run(self, path: Path | None, on_epoch: Callable[[list[dict[str, Any]]], None], /) -> Found:
        """Train to the end; a checkpoint at `path`, the curve so far to `on_epoch`."""


class Curve:
    """Rows of all networks so far, rewritten with each epoch."""

    def __init__(self, path: str) -> None:
        self._path, self._rows = path, list[dict[str, Any]]()

    def begin(self, head: dict[str, Any]) -> Callable[[list[dict[str, Any]]], None]:
        """Callback for the rows of one network; `head` are the columns that identify it."""
        before = [row for row in self._rows if not head.items() <= row.items()]

        def show(rows: list[dict[str, Any]]) -> None:
            self._rows = [*before, *({"client": ""} | head | row for row in rows)]
            self.write(self._path)

        return show

    def write(self, path: str | Path) -> None:
        """Write all rows, if there are any."""
        if self._rows:
            write_rows(path, CURVE, self._rows, check=True)


class Results:
    """Weights and accuracies of the trained networks, and their output files.

    The model file holds the server's part: for a locked network what clients share, with the
    initial lock weights from the server. Private parts go into the clients' own files. `images` is
    ``embedded`` or ``real``, for the summary.

    Parameters
    ----------
    models, seeds
        Networks, and number of seeds that are trained.
    paths
        ``weights`` (a model file), ``curve`` (a row an epoch, rewritten as it grows), ``summary``
        (a row a network and client), ``checkpoints`` (their folder; emptied at the end), and
        ``clients``, a folder, for locked networks.
    """

    def __init__(
        self, models: files.ModelFile, seeds: int, paths: Mapping[str, str], images: str
    ) -> None:
        self._models, self._seeds, self._paths, self._images = models, seeds, paths, images
        self.curve = Curve(paths["curve"])
        self.summary: list[dict[str, Any]] = []
        self._weights: dict[str, list[np.ndarray]] = {}
        self._private: dict[int, dict[str, list[np.ndarray]]] = {}
        self._folder = Path(paths["checkpoints"])

    def checkpoint(self, chain: Chain, seed: int) -> Path:
        """Path of the checkpoint of one network."""
        return self._folder / f"{chain.name}-{seed}.safetensors"

    def run(self, learner: Runnable[Found], chain: Chain, seed: int) -> Found:
        """Train one network to the end and write its curve meanwhile."""
        show = self.curve.begin({"model": chain.name, "seed": seed})
        try:
            found = learner.run(self.checkpoint(chain, seed), show)
        except GradleakError:
            # Snakemake removes the outputs of a failed job, but its curve helps to find the reason.
            self.curve.write(self._folder / KEPT_CURVE)
            raise
        show(found.rows)
        return found

    def keep(self, chain: Chain, seed: int, shared: Arrays, own: Sequence[Arrays]) -> None:
        """Store the weights that a network's clients share and the private part of each."""
        held = public(shared) | private(self._models.of(chain, seed))
        for name, value in held.items():
            self._weights.setdefault(f"{chain.name}/{name}", []).append(value)
        for client, arrays in enumerate(own):
            kept = self._private.setdefault(client, {})
            for name, value in private(arrays).items():
                kept.setdefault(f"{chain.name}/{name}", []).append(value)

    def tell(self, learner: Learner, split: Split, **columns: Any) -> None:
        """Add a row to the summary: network, seed, and `columns`."""
        row = {
            "model": learner.chain.name,
            "seed": learner.seed,
            "images": self._images,
            "epochs": learner.recipe.epochs,
            **split.sizes,
            "arithmetic": learner.kind,
            "device": learner.device.type,
            **columns,
        }
        self.summary.append({column: row[column] for column in SUMMARY})

    def save(self, provenance: dict[str, Any], clients: Sequence[ClientFile]) -> None:
        """Write all files; delete checkpoints."""
        for number, weights in self._private.items():
            path = str(Path(self._paths["clients"]) / f"{number}.safetensors")
            own = {name: np.stack(values) for name, values in weights.items()}
            replace(clients[number], weights=own, path=path).save(provenance)
        stacked = {name: np.stack(values) for name, values in self._weights.items()}
        files.save(
            self._paths["weights"], list(self._models.chains), stacked, provenance, self.summary
        )
        write_rows(self._paths["summary"], SUMMARY, self.summary, check=True)
        self._clear()

    def _clear(self) -> None:
        used = [self.checkpoint(*network) for network in networks(self._models, self._seeds)]
        for path in (self._folder / KEPT_CURVE, *used):
            path.unlink(missing_ok=True)
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()
