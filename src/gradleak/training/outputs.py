"""Networks that a training job trains, and the files that it writes."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from gradleak.client.capture import pick_device
from gradleak.client.client_keys import ClientFile
from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError
from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.models.locks import private, public
from gradleak.runtime.artifacts import write_rows
from gradleak.training.checkpoint import Arrays, OnRows, clear, curve_kept
from gradleak.training.data import DRAWN, split_of
from gradleak.training.learner import Learner
from gradleak.training.recipe import recipe_of

CURVE = (
    "model", "seed", "epoch", "rate", "train_loss", "train_accuracy", "validation_loss",
    "validation_accuracy", "client",
)  # fmt: skip
SUMMARY = (
    "model", "seed", "images", "epochs", "best_epoch", "validation_accuracy", "test_accuracy",
    "train", "validation", "test", "arithmetic", "device", "regime", "client", "dropped",
)  # fmt: skip


class HasRows(Protocol):
    """Result of a training run, with the rows of its curve."""

    rows: list[dict[str, Any]]


Found = TypeVar("Found", bound=HasRows)


class Results:
    """Training of all networks of a model file, their weights, accuracies, and output files.

    The model file holds the server's part: for a locked network what clients share, with the
    initial lock weights from the server. Private parts go into the clients' own files.

    `seeds` of `models` are trained on `data`, by `settings`, an entry of ``trainings``, amounts as
    numbers, on `device` (auto | cpu | cuda | mps). `paths` are ``weights`` (a model file),
    ``curve`` (a row an epoch, rewritten as it grows), ``summary`` (a row a network and client),
    ``checkpoints`` (their folder; emptied at the end), and ``clients``, a folder, for locked
    networks. `images`, ``embedded`` or ``real``, are for the summary. `provenance` goes into the
    model file and clients' files; checkpoints of another hash `code` are not resumed. For locked
    networks `clients` holds the one client that trains them, or in a federation all, in order.
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
        provenance: dict[str, Any],
        code: str = "",
        clients: Sequence[ClientFile] = (),
    ) -> None:
        self.models, self.code, self.clients, self.settings = models, code, clients, settings
        self._data, self._paths, self._images, self._provenance = data, paths, images, provenance
        self._networks = list(product(models.chains, range(seeds)))
        self.split = split_of(data, settings, pick_device(device))
        self.recipe = recipe_of(settings)
        # Identity of the images in a checkpoint.
        self.source = {**data.identity(), **{key: settings[key] for key in DRAWN}}
        self.summary: list[dict[str, Any]] = []
        self._rows: list[dict[str, Any]] = []
        self._weights: dict[str, list[np.ndarray]] = defaultdict(list)
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

    def run(self, learner: Learner, train: Callable[[Path, OnRows], Found]) -> Found:
        """Train one network to the end and write its curve meanwhile."""
        before, head = self._rows, {"client": "", "model": learner.chain.name, "seed": learner.seed}

        def show(rows: list[dict[str, Any]]) -> None:
            self._rows = [*before, *(head | row for row in rows)]
            self._write_curve(self._paths["curve"])

        with curve_kept(self._folder, self._write_curve):
            found = train(self._checkpoint(learner.chain, learner.seed), show)
        show(found.rows)
        return found

    def _write_curve(self, path: str | Path) -> None:
        if self._rows:
            write_rows(path, CURVE, self._rows, check=True)

    def keep(self, learner: Learner, shared: Arrays, own: Sequence[Arrays]) -> None:
        """Store the weights that a network's clients share and the private part of each."""
        chain = learner.chain
        held = public(shared) | private(self.models.of(chain, learner.seed))
        for name, value in held.items():
            self._weights[f"{chain.name}/{name}"].append(value)
        for client, arrays in enumerate(own if chain.locked else []):
            kept = self._private.setdefault(client, defaultdict(list))
            for name, value in private(arrays).items():
                kept[f"{chain.name}/{name}"].append(value)

    def tell(self, learner: Learner, **columns: Any) -> None:
        """Add a row to the summary: network, seed, and `columns`."""
        row = {"model": learner.chain.name, "seed": learner.seed, "images": self._images}
        row |= {"epochs": learner.recipe.epochs, **self.split.sizes, "arithmetic": learner.kind}
        row |= {"device": learner.device.type, **columns}
        self.summary.append({column: row[column] for column in SUMMARY})

    def save(self) -> None:
        """Write all files; delete checkpoints."""
        for number, weights in self._private.items():
            path = str(Path(self._paths["clients"]) / f"{number}.safetensors")
            replace(self.clients[number], weights=_stacked(weights), path=path).save(
                self._provenance
            )
        chains, stacked = list(self.models.chains), _stacked(self._weights)
        files.save(self._paths["weights"], chains, stacked, self._provenance, self.summary)
        write_rows(self._paths["summary"], SUMMARY, self.summary, check=True)
        clear(self._folder, *(self._checkpoint(*network) for network in self._networks))


def _stacked(weights: Mapping[str, Sequence[np.ndarray]]) -> Arrays:
    return {name: np.stack(values) for name, values in weights.items()}
