"""Let clients train every network of a model file together: FedAvg and FedKL."""

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.client.client_keys import ClientFile
from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError
from gradleak.models import files
from gradleak.models.chain import Chain
from gradleak.training.checkpoint import Arrays
from gradleak.training.client_sampling import Federated
from gradleak.training.federated import RANDOM, SERVER, Federation, Rounds
from gradleak.training.outputs import Results
from gradleak.training.partition import split as split_between

AVERAGED, LOCKED = "fedavg", "fedkl"


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

    Parameters and errors are those of `gradleak.training.run.train_all`; `clients` are all clients
    of locked networks, in order. Raises `DataError` if a client would have no image.
    """
    federated = Federated(**settings["federated"])
    results = Results(models, data, settings, **how)
    train = results.split.train
    places = split_between(train.labels.cpu().numpy(), federated, settings["seed"])
    parts = [train.part(own) for own in places]
    for chain, seed in results.networks():
        private = _private(chain, seed, clients, federated.clients)
        federation = Federation(
            chain, models.of(chain, seed), private, parts, results.split, results.recipe, federated,
            seed, results.source, code,
        )  # fmt: skip
        found = results.run(federation.run, chain, seed)
        _tell(results, federation, found)
        results.keep(chain, seed, found.kept, found.kept_private if chain.locked else [])
    results.save(provenance, clients)


def _private(chain: Chain, seed: int, clients: Sequence[ClientFile], number: int) -> list[Arrays]:
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


def _tell(results: Results, federation: Federation, found: Rounds) -> None:
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
