"""Let clients train every network of a model file together: FedAvg and FedKL."""

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
from gradleak.training.client_sampling import Federated
from gradleak.training.data import Split
from gradleak.training.federated import RANDOM, SERVER, Federation, Rounds
from gradleak.training.outputs import Results, check, networks, recipe_of, source_of, split_of
from gradleak.training.partition import split as split_between

AVERAGED, LOCKED = "fedavg", "fedkl"


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

    Parameters and errors are those of `gradleak.training.run.train_all`; `clients` are all clients
    of locked networks, in order. Raises `DataError` if a client would have no image.
    """
    federated = Federated(**settings["federated"])
    split, recipe = split_of(data, settings, pick_device(device)), recipe_of(settings)
    parts = [
        split.train.part(places)
        for places in split_between(split.train.labels.cpu().numpy(), federated, settings["seed"])
    ]
    results = Results(models, seeds, paths, images)
    source = source_of(data, settings)
    for chain, seed in networks(models, seeds):
        check(chain, data, split)
        federation = Federation(
            chain,
            models.of(chain, seed),
            _private(chain, seed, clients, federated.clients),
            parts,
            split,
            recipe,
            federated,
            seed,
            source,
            code,
        )
        found = results.run(federation, chain, seed)
        _tell(results, federation, split, found)
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


def _tell(results: Results, federation: Federation, split: Split, found: Rounds) -> None:
    """Add a row for each client whose accuracy counts, and for the server or the random key."""
    regime = LOCKED if federation.chain.locked else AVERAGED
    for who, best in found.best.items():
        columns = {"dropped": sum(found.dropped) if who == SERVER else 0}
        if who not in (SERVER, RANDOM):
            columns = {
                "dropped": found.dropped[int(who)],
                "train": len(federation.parts[int(who)]),
            }
        results.tell(
            federation,
            split,
            best_epoch=best.round,
            validation_accuracy=best.validation_accuracy,
            test_accuracy=best.test_accuracy,
            regime=regime,
            client=who,
            **columns,
        )
