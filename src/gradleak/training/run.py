"""Train every network of a model file by itself: weights, curves, and accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.client.capture import pick_device
from gradleak.client.client_keys import ClientFile
from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError
from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.training.checkpoint import Arrays
from gradleak.training.engine import Trainer
from gradleak.training.outputs import Results, check, networks, recipe_of, source_of, split_of

REGIME = "central"


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
    code: str = "",
    clients: Sequence[ClientFile] = (),
) -> None:
    """Train every chain under every seed and write the results.

    Parameters
    ----------
    models
        Networks and their initial weights.
    data
        Images for training, validation and test.
    settings
        An entry of ``trainings`` in config.yaml, amounts as numbers.
    seeds
        Number of initializations that are trained.
    device
        auto | cpu | cuda | mps.
    paths, images
        See `gradleak.training.outputs.Results`.
    provenance
        Of the model file and clients' files.
    code
        Hash of the code: checkpoints of other code are not resumed.
    clients
        For locked networks the one client that trains them.

    Raises
    ------
    ConfigError
        If a network has fewer outputs than the data set has classes, takes other images, or is
        locked and there is no client.
    """
    split, recipe = split_of(data, settings, pick_device(device)), recipe_of(settings)
    results = Results(models, seeds, paths, images)
    source = source_of(data, settings)
    for chain, seed in networks(models, seeds):
        check(chain, data, split)
        weights = models.of(chain, seed) | _private(chain, seed, clients)
        trainer = Trainer(chain, weights, split, recipe, seed, source, code)
        found = results.run(trainer, chain, seed)
        best = next(row for row in found.rows if row["epoch"] == found.epoch)
        results.tell(
            trainer,
            split,
            best_epoch=found.epoch,
            validation_accuracy=best["validation_accuracy"],
            test_accuracy=found.accuracy,
            regime=REGIME,
            client="",
            dropped=0,
        )
        results.keep(chain, seed, found.weights, [found.weights] if chain.locked else [])
    results.save(provenance, clients)


def _private(chain: Chain, seed: int, clients: Sequence[ClientFile]) -> Arrays:
    """Key and lock of the client that trains a locked network."""
    if not chain.locked:
        return {}
    if not clients:
        raise ConfigError(f"{chain.name} is locked; name the client's file that has its key.")
    return clients[0].of(chain, seed)
