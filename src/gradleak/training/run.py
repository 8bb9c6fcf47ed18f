"""Train every network of a model file by itself: weights, curves, and accuracies."""

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.client.client_keys import ClientFile
from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError
from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.training.checkpoint import Arrays
from gradleak.training.engine import Trainer
from gradleak.training.outputs import Results

REGIME = "central"


def train_all(
    models: files.ModelFile,
    data: Dataset,
    settings: Mapping[str, Any],
    *,
    provenance: dict[str, Any],
    code: str = "",
    clients: Sequence[ClientFile] = (),
    **how: Any,
) -> None:
    """Train every chain under every seed and write the results.

    `models`, `data`, `settings` and `how` are those of `gradleak.training.outputs.Results`,
    `provenance` that of the model file and clients' files. Checkpoints of another hash `code` are
    not resumed. For locked networks `clients` holds the one client that trains them. Raises
    `ConfigError` if a network has fewer outputs than the data set has classes, takes other images,
    or is locked and there is no client.
    """
    results = Results(models, data, settings, **how)
    for chain, seed in results.networks():
        weights = models.of(chain, seed) | _private(chain, seed, clients)
        trainer = Trainer(chain, weights, results.split, results.recipe, seed, results.source, code)
        found = results.run(trainer.run, chain, seed)
        best = next(row for row in found.rows if row["epoch"] == found.epoch)
        results.tell(
            trainer,
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
