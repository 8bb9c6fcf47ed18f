"""Train every network of a model file by itself."""

from collections.abc import Sequence

from gradleak.client.client_keys import ClientFile
from gradleak.errors import ConfigError
from gradleak.models.chain import Chain
from gradleak.training.checkpoint import Arrays
from gradleak.training.engine import Trainer
from gradleak.training.outputs import Results

REGIME = "central"


def train_all(results: Results) -> None:
    """Train every chain under every seed and write the results.

    Raises `ConfigError` if a network has fewer outputs than the data set has classes, takes other
    images, or is locked and the client is missing.
    """
    split, recipe = results.split, results.recipe
    for chain, seed in results.networks():
        weights = results.models.of(chain, seed) | _of_one(chain, seed, results.clients)
        last = recipe, seed, results.source, results.code
        _tell(results, Trainer(chain, weights, split, *last))
    results.save()


def _of_one(chain: Chain, seed: int, clients: Sequence[ClientFile]) -> Arrays:
    """Key and lock of the client that trains a locked network."""
    if not chain.locked:
        return {}
    if not clients:
        raise ConfigError(f"{chain.name} is locked; name the client's file that has its key.")
    return clients[0].of(chain, seed)


def _tell(results: Results, trainer: Trainer) -> None:
    found = results.run(trainer, trainer.run)
    results.tell(
        trainer,
        best_epoch=found.epoch,
        validation_accuracy=found.rows[found.epoch - 1]["validation_accuracy"],
        test_accuracy=found.accuracy,
        regime=REGIME,
        client="",
        dropped=0,
    )
    results.keep(trainer, found.weights, [found.weights])
