"""Settings of training runs and their outputs: model file, curves, accuracies, clients' files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from gradleak.client.capture import pick_device
from gradleak.client.client_keys import ClientFile
from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError
from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.models.locks import private, public
from gradleak.runtime.artifacts import write_rows
from gradleak.training.checkpoint import Arrays, OnRows, clear, curve_kept
from gradleak.training.data import Split, divide
from gradleak.training.learner import Learner
from gradleak.training.recipe import Recipe

CURVE = (
    "model", "seed", "epoch", "rate", "train_loss", "train_accuracy", "validation_loss",
    "validation_accuracy", "client",
)  # fmt: skip
SUMMARY = (
    "model", "seed", "images", "epochs", "best_epoch", "validation_accuracy", "test_accuracy",
    "train", "validation", "test", "arithmetic", "device", "regime", "client", "dropped",
)  # fmt: skip
PARTS = ("train", "validation", "test")
# Settings that determine the images of the parts.
DRAWN = ("seed", "offset", "std", "size", "resize")


def recipe_of(settings: Mapping[str, Any]) -> Recipe:
    """Recipe from an entry of ``trainings``, amounts as numbers."""
    known = {field.name for field in fields(Recipe)}
    chosen = {key: value for key, value in settings.items() if key in known}
    return Recipe(**{**chosen, "milestones": tuple(chosen["milestones"])})


def split_of(data: Dataset, settings: Mapping[str, Any], device: torch.device) -> Split:
    """Images for an entry of ``trainings``, amounts as numbers."""
    counts = {part: settings[part] for part in PARTS}
    return divide(data, counts, device=device, **{key: settings[key] for key in DRAWN})


class HasRows(Protocol):
    """Result of a training run."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of its curve."""


Found = TypeVar("Found", bound=HasRows)


class Results:
    """Training of all networks of a model file, their weights, accuracies, and output files.

    The model file holds the server's part: for a locked network what clients share, with the
    initial lock weights from the server. Private parts go into the clients' own files.

    Parameters
    ----------
    models, seeds
        Networks and their initial weights, and number of seeds that are trained.
    data, settings
        Images for training, validation and test, by an entry of ``trainings``, amounts as numbers.
    device
        auto | cpu | cuda | mps.
    paths
        ``weights`` (a model file), ``curve`` (a row an epoch, rewritten as it grows), ``summary``
        (a row a network and client), ``checkpoints`` (their folder; emptied at the end), and
        ``clients``, a folder, for locked networks.
    images
        ``embedded`` or ``real``, for the summary.
    """

    def __init__(
        self,
        models: files.ModelFile,
        data: Dataset,
        settings: Mapping[str, Any],
        *,
        seeds: int,
        device: str,
        paths: Mapping[str, str],
        images: str,
    ) -> None:
        self._models, self._data, self._paths, self._images = models, data, paths, images
        self._networks = list(product(models.chains, range(seeds)))
        self.split = split_of(data, settings, pick_device(device))
        self.recipe = recipe_of(settings)
        # Identity of the images in a checkpoint.
        self.source = {**data.identity(), **{key: settings[key] for key in DRAWN}}
        self.summary: list[dict[str, Any]] = []
        self._rows: list[dict[str, Any]] = []
        self._weights: dict[str, list[np.ndarray]] = {}
        self._private: dict[int, dict[str, list[np.ndarray]]] = {}
        self._folder = Path(paths["checkpoints"])

    def networks(self) -> Iterator[tuple[Chain, int]]:
        """Each chain under each seed; `ConfigError` for one that does not fit images or classes."""
        for chain, seed in self._networks:
            data, shape = self._data, self.split.train.shape
            if shape != chain.input:
                raise ConfigError(
                    f"{chain.name} takes images of {list(chain.input)}, but {data.dataset} has "
                    f"{list(shape)}; choose another data set, size or model."
                )
            if chain.classes < len(data.classes):
                raise ConfigError(
                    f"{chain.name} has {chain.classes} outputs, but {data.dataset} has "
                    f"{len(data.classes)} classes; give it as many outputs."
                )
            yield chain, seed

    def _checkpoint(self, chain: Chain, seed: int) -> Path:
        return self._folder / f"{chain.name}-{seed}.safetensors"

    def run(self, train: Callable[[Path, OnRows], Found], chain: Chain, seed: int) -> Found:
        """Train one network to the end and write its curve meanwhile."""
        before, head = self._rows, {"client": "", "model": chain.name, "seed": seed}

        def show(rows: list[dict[str, Any]]) -> None:
            self._rows = [*before, *(head | row for row in rows)]
            self._write_curve(self._paths["curve"])

        with curve_kept(self._folder, self._write_curve):
            found = train(self._checkpoint(chain, seed), show)
        show(found.rows)
        return found

    def _write_curve(self, path: str | Path) -> None:
        if self._rows:
            write_rows(path, CURVE, self._rows, check=True)

    def keep(self, chain: Chain, seed: int, shared: Arrays, own: Sequence[Arrays]) -> None:
        """Store the weights that a network's clients share and the private part of each."""
        held = public(shared) | private(self._models.of(chain, seed))
        for name, value in held.items():
            self._weights.setdefault(f"{chain.name}/{name}", []).append(value)
        for client, arrays in enumerate(own):
            kept = self._private.setdefault(client, {})
            for name, value in private(arrays).items():
                kept.setdefault(f"{chain.name}/{name}", []).append(value)

    def tell(self, learner: Learner, **columns: Any) -> None:
        """Add a row to the summary: network, seed, and `columns`."""
        row = {
            "model": learner.chain.name,
            "seed": learner.seed,
            "images": self._images,
            "epochs": learner.recipe.epochs,
            **self.split.sizes,
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
        chains = list(self._models.chains)
        files.save(self._paths["weights"], chains, stacked, provenance, self.summary)
        write_rows(self._paths["summary"], SUMMARY, self.summary, check=True)
        clear(self._folder, *(self._checkpoint(*network) for network in self._networks))
