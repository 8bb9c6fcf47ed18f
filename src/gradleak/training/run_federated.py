"""Train every network of a model file by clients together: FedAvg and FedKL."""

from collections.abc import Sequence

from gradleak.client.client_keys import ClientFile
from gradleak.errors import ConfigError
from gradleak.models.chain import Chain
from gradleak.training.checkpoint import Arrays
from gradleak.training.clients import Federated, split
from gradleak.training.federated import RANDOM, SERVER, Federation
from gradleak.training.outputs import Results

AVERAGED, LOCKED = "fedavg", "fedkl"


def train_all(results: Results) -> None:
    """Train every chain under every seed and write the results.

    Raises `ConfigError` if a network has fewer outputs than the data set has classes, takes other
    images, or is locked and clients are missing, and `DataError` if a client would have no image.
    """
    federated, train = Federated(**results.settings["federated"]), results.split.train
    places = split(train.labels.cpu().numpy(), federated, results.settings["seed"])
    parts = [train.part(own) for own in places]
    for chain, seed in results.networks():
        weights = results.models.of(chain, seed)
        private = _of_all(chain, seed, results.clients, federated.clients)
        last = results.recipe, seed, results.source, results.code
        _tell(
            results,
            Federation(chain, weights, private, parts, results.split, federated, *last),
        )
    results.save()


def _of_all(chain: Chain, seed: int, clients: Sequence[ClientFile], number: int) -> list[Arrays]:
    """Key and lock of each client; empty if the network is not locked."""
    if not chain.locked:
        return [{} for _ in range(number)]
    numbers = [client.client for client in clients]
    if numbers != list(range(number)):
        raise ConfigError(
            f"{chain.name} is locked, and clients 0 to {number - 1} are to train it, but files are "
            f"given of {numbers or 'none'}; name one of each, in order."
        )
    return [client.of(chain, seed) for client in clients]


def _tell(results: Results, federation: Federation) -> None:
    found = results.run(federation, federation.run)
    for who, best in found.best.items():
        columns = {"dropped": sum(found.dropped) if who == SERVER else 0}
        if who not in (SERVER, RANDOM):
            client = int(who)
            columns = {"dropped": found.dropped[client], "train": len(federation.parts[client])}
        results.tell(
            federation,
            best_epoch=best.round,
            validation_accuracy=best.validation_accuracy,
            test_accuracy=best.test_accuracy,
            regime=LOCKED if federation.chain.locked else AVERAGED,
            client=who,
            **columns,
        )
    results.keep(federation, found.kept, found.kept_private)
