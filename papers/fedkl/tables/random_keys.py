"""Accuracy and loss under keys and locks that no client has (FedKL Table III, "Random")."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

from gradleak.claims.statistics import wilson, z_value
from gradleak.client import client_keys
from gradleak.data import arrays
from gradleak.errors import ArtifactError
from gradleak.models import files as model_files
from gradleak.models.build import fast_layout, load
from gradleak.models.chain import Chain
from gradleak.models.fresh_locks import draw_lock
from gradleak.models.initial import draw_key
from gradleak.models.locks import private
from gradleak.runtime.tidy import TABLES, Given, Row, cell, frame
from gradleak.training.data import Images, split_of
from gradleak.training.federated import NOBODY

COLUMNS = [
    *TABLES, "model", "training", "network", "dataset", "split", "client", "reading", "error",
    "tested",
]  # fmt: skip
LEVEL = 0.95
BATCH = 500
# Random stream of the random locks, beside the seed and the draw's number.
STREAM = b"random lock"
# Clients as in `papers.fedkl.tables.accuracy`; readings of the paper's "random".
MEAN, RANDOM = "mean", "random"
OWN, INITIAL, FRESH, ZERO = "own", "initial lock", "random lock", "zero lock"
WORDS = {
    INITIAL: "random key, the server's initial lock weights",
    FRESH: "random key and random lock weights",
    ZERO: "lock weights of zero, as in the authors' code, where the key has no effect",
}

Arrays = Mapping[str, np.ndarray]
Result = tuple[float, float]  # loss, accuracy


@dataclass(frozen=True)
class Network:
    """A network that clients trained together, at the round that is kept."""

    chain: Chain
    public: Arrays  # what the clients share
    initial: Arrays  # lock weights that the server sent first
    clients: Sequence[Arrays]  # key and lock weights of each

    @classmethod
    def read(cls, path: str, folder: str, name: str) -> "Network":
        """Read a network of the first seed from a model file and the folder of its clients.

        Raises `ArtifactError` if the file has no network of that name, or there is no client.
        """
        models = model_files.read(path)
        found = [chain for chain in models.chains if chain.name == name]
        own = sorted(Path(folder).glob("*.safetensors"), key=lambda p: int(p.stem))
        if not (found and own):
            raise ArtifactError(
                f"{path} has no {name}, or its clients are missing; delete it and ask Snakemake "
                "for it again."
            )
        (chain,) = found
        weights = models.of(chain, 0)
        each = [client_keys.read(str(path)).of(chain, 0) for path in own]
        return cls(chain, weights, private(weights), each)

    def readings(self, draws: int) -> Iterator[tuple[str, list[Arrays]]]:
        """Yield each reading of "random" with the keys and lock weights of its draws.

        The first key is that of `gradleak.training.federated`.
        """
        keys = [draw_key(self.chain, NOBODY + draw, 0) for draw in range(draws)]
        locks = [
            draw_lock(self.chain, np.random.default_rng((0, draw, *STREAM)))
            for draw in range(draws)
        ]
        yield INITIAL, [{**self.initial, **key} for key in keys]
        yield FRESH, [{**lock, **key} for lock, key in zip(locks, keys, strict=True)]
        zeros = {name: np.zeros_like(value) for name, value in self.initial.items()}
        yield ZERO, [{**zeros, **keys[0]}]


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: rows are clients and readings of "random", columns networks on data.

    ``cases`` of `words` have the labels ``column``, ``model``, ``training``, ``network``; the data
    set's ``dataset`` (an id of Table I), ``source`` (the id of its file) and ``split``;
    ``settings``, the entry of ``trainings``, amounts as numbers; and ``draws``. Files of each:
    ``data``, model files ``locked``, and ``clients``, the folder of their private parts. `case` has
    the columns ``images`` and ``scale``.

    All are of the round that is kept, the one of the best mean validation accuracy, whereas
    ``fedkl_accuracy`` has each client's best round. ``accuracy`` (percent) and ``loss``
    (cross-entropy) are of test images: means over clients, or over `n` draws of key and lock.
    ``gap`` is the accuracy of the mean over clients minus that of the reading. ``error`` of an
    accuracy is half of Wilson's 95 % interval over z, and with several draws the standard error of
    their mean in quadrature with it; ``low`` and ``high`` follow from it. The first seed is used.
    """
    paths = (files[key] for key in ("data", "locked", "clients"))
    each = zip(words["cases"], *paths, strict=True)
    found = frame([row for one in each for row in _rows(*one)], COLUMNS, **case)
    return found.astype({"tested": "Int64"})


def _rows(case: Given, data: str, locked: str, clients: str) -> Iterator[Row]:
    settings = case["settings"]
    dataset = arrays.load(data, case["source"], settings["split"])
    test = split_of(dataset, settings, torch.device("cpu")).test
    network = Network.read(locked, clients, case["model"])
    same = ("column", "model", "training", "network", "dataset", "split")
    head = {key: case[key] for key in same} | {"tested": len(test)}
    judge = Judge(network, test)
    own = [judge(client) for client in network.clients]
    for number, result in enumerate(own):
        place = {"row": f"FedKL, Client {number}", "client": str(number), "reading": OWN}
        yield from _measured({**head, **place}, [result], "own key and lock weights")
    place = {"row": "FedKL, Average", "client": MEAN, "reading": OWN}
    means = list(_measured({**head, **place}, own, f"mean over {len(own)} clients"))
    yield from means
    for reading, drawn in network.readings(case["draws"]):
        place = {"row": f"FedKL, Random ({reading})", "client": RANDOM, "reading": reading}
        rows = list(_measured({**head, **place}, [judge(one) for one in drawn], WORDS[reading]))
        yield from rows
        yield _gap(means[0], rows[0], reading)


class Judge:
    """Loss and accuracy of a network on images under some key and lock weights."""

    def __init__(self, network: Network, images: Images) -> None:
        self._chain, self._images = network.chain, images
        self._module = load(network.chain, {**network.public, **network.clients[0]}, torch.float32)
        self._module.eval().to(memory_format=fast_layout(network.chain))

    @torch.no_grad()
    def __call__(self, own: Arrays) -> Result:
        """Return loss and accuracy under keys and lock weights."""
        there = self._module.state_dict()
        for name, value in own.items():
            there[name].copy_(torch.from_numpy(value))
        loss = right = 0.0
        for inputs, labels in self._images.batches(BATCH):
            output = self._module(inputs.contiguous(memory_format=fast_layout(self._chain)))
            loss += float(functional.cross_entropy(output, labels, reduction="sum"))
            right += int((output.argmax(1) == labels).sum())
        return loss / len(self._images), right / len(self._images)


def _measured(head: Row, results: Sequence[Result], note: str) -> Iterator[Row]:
    """Yield the rows ``accuracy`` and ``loss`` of some results."""
    losses, shares = np.array(results).T
    low, high = wilson(float(shares.mean()), head["tested"], LEVEL)
    error = (high - low) / (2 * z_value(LEVEL))
    if head["client"] == RANDOM and len(shares) > 1:
        error = float(np.hypot(error, shares.std(ddof=1) / np.sqrt(len(shares))))
        note += f"; {100 * shares.min():.4g} to {100 * shares.max():.4g} % over draws"
    counts = len(shares), len(shares)
    mean = 100 * float(shares.mean())
    half = 100 * z_value(LEVEL) * error
    interval = max(0.0, mean - half), min(100.0, mean + half)
    yield {**cell(head, "accuracy", mean, note, interval, counts), "error": 100 * error}
    spread = (float(losses.min()), float(losses.max()))
    yield cell(head, "loss", float(losses.mean()), note, spread, counts)


def _gap(mean: Row, other: Row, reading: str) -> Row:
    """Accuracy of the clients' mean minus another, as independent shares."""
    gap, error = mean["ours"] - other["ours"], float(np.hypot(mean["error"], other["error"]))
    half, note = z_value(LEVEL) * error, f"accuracy less that of: {WORDS[reading]}"
    counts = mean["n"] + other["n"], mean["n_ok"] + other["n_ok"]
    row = cell({**mean, "reading": reading}, "gap", gap, note, (gap - half, gap + half), counts)
    return {**row, "error": error}
