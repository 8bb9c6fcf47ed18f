"""Train every network of a model file: weights, curves, and the accuracy of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.artifacts import write_rows
from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError, GradleakError
from gradleak.gradients import pick_device
from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.training.data import Split, divide
from gradleak.training.engine import Trained, Trainer
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
)
# The curve of a training that failed, beside its checkpoints.
KEPT_CURVE = "curve.csv"
PARTS = ("train", "validation", "test")


def recipe_of(settings: Mapping[str, Any]) -> Recipe:
    """Recipe in an entry of ``trainings``, amounts as numbers."""
    known = {field.name for field in fields(Recipe)}
    chosen = {key: value for key, value in settings.items() if key in known}
    return Recipe(**{**chosen, "milestones": tuple(chosen["milestones"])})


def train_all(
    models: files.ModelFile,
    data: Dataset,
    settings: Mapping[str, Any],
    *,
    seeds: int,
    device: str,
    paths: Mapping[str, str],
    images: str,
    provenance: dict[str, Any],
) -> None:
    """Train every chain under every seed and write what comes of it.

    Parameters
    ----------
    models
        Networks and where they start.
    data
        Images to train, choose and report on.
    settings
        An entry of ``trainings`` in config.yaml, amounts as numbers.
    seeds
        Draws of the initial weights that are trained.
    device
        auto | cpu | cuda | mps.
    paths
        ``weights`` (a model file), ``curve`` (a row an epoch, rewritten as it grows), ``summary``
        (a row a network), ``checkpoints`` (their folder; emptied at the end).
    images
        ``embedded`` or ``real``, for the summary.
    provenance
        Of the model file.

    Raises
    ------
    ConfigError
        If a network has fewer outputs than the data set has classes, or takes other images.
    """
    chosen = pick_device(device)
    recipe = recipe_of(settings)
    split = divide(
        data,
        {part: settings[part] for part in PARTS},
        seed=settings["seed"],
        offset=settings["offset"],
        std=settings["std"],
        device=chosen,
    )
    curve = _Curve(paths["curve"])
    summary: list[dict[str, Any]] = []
    weights: dict[str, list[np.ndarray]] = {}
    folder = Path(paths["checkpoints"])
    for chain, seed in _networks(models, seeds):
        _check(chain, data)
        head = {"model": chain.name, "seed": seed}
        source, code = _source(data, settings), provenance.get("code", "")
        trainer = Trainer(chain, models.of(chain, seed), split, recipe, seed, source, code)
        try:
            found = trainer.run(_checkpoint(folder, chain, seed), curve.begin(head))
        except GradleakError:
            # Snakemake removes the outputs of a job that fails; its curve tells why.
            curve.write(folder / KEPT_CURVE)
            raise
        curve.begin(head)(found.rows)
        summary.append(head | _summary(found, trainer, split, images))
        for name, value in found.weights.items():
            weights.setdefault(f"{chain.name}/{name}", []).append(value)
    stacked = {name: np.stack(values) for name, values in weights.items()}
    files.save(paths["weights"], list(models.chains), stacked, provenance, summary)
    write_rows(paths["summary"], SUMMARY, summary)
    _clear(folder, models, seeds)


class _Curve:
    """Rows of all networks so far, written anew with each epoch."""

    def __init__(self, path: str) -> None:
        self._path, self._rows = path, list[dict[str, Any]]()

    def begin(self, head: dict[str, Any]) -> Callable[[list[dict[str, Any]]], None]:
        """What takes the rows of one network, `head` the columns that say which."""
        before = [row for row in self._rows if not head.items() <= row.items()]

        def show(rows: list[dict[str, Any]]) -> None:
            self._rows = [*before, *(head | row for row in rows)]
            self.write(self._path)

        return show

    def write(self, path: str | Path) -> None:
        """Write all rows, if there are any."""
        if self._rows:
            write_rows(path, CURVE, self._rows)


def _checkpoint(folder: Path, chain: Chain, seed: int) -> Path:
    return folder / f"{chain.name}-{seed}.safetensors"


def _networks(models: files.ModelFile, seeds: int) -> Iterator[tuple[Chain, int]]:
    """Each chain under each seed."""
    for chain in models.chains:
        for seed in range(seeds):
            yield chain, seed


def _check(chain: Chain, data: Dataset) -> None:
    if data.images.shape[1:] != chain.input:
        raise ConfigError(
            f"{chain.name} takes images of {list(chain.input)}, but {data.dataset} has "
            f"{list(data.images.shape[1:])}; choose another data set or model."
        )
    if chain.classes < len(data.classes):
        raise ConfigError(
            f"{chain.name} has {chain.classes} outputs, but {data.dataset} has "
            f"{len(data.classes)} classes; give it as many outputs."
        )


def _source(data: Dataset, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of the images."""
    chosen = {key: settings[key] for key in ("seed", "offset", "std")}
    return {**data.identity(), **chosen}


def _summary(found: Trained, trainer: Trainer, split: Split, images: str) -> dict[str, Any]:
    """A row of the summary, without network and seed."""
    best = next(row for row in found.rows if row["epoch"] == found.epoch)
    return {
        "images": images,
        "epochs": trainer.recipe.epochs,
        "best_epoch": found.epoch,
        "validation_accuracy": best["validation_accuracy"],
        "test_accuracy": found.accuracy,
        **split.sizes,
        "arithmetic": trainer.kind,
        "device": trainer.device.type,
    }


def _clear(folder: Path, models: files.ModelFile, seeds: int) -> None:
    """Remove checkpoints that the finished training no longer needs."""
    for path in (
        folder / KEPT_CURVE,
        *(_checkpoint(folder, chain, seed) for chain, seed in _networks(models, seeds)),
    ):
        path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
