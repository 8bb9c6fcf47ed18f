"""MKOR on whole batches in one process, for tables that change what a client does."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import stats

from gradleak.attacks.base import Attack, AttackerView, Reconstruction
from gradleak.attacks.runner import build as attack_of
from gradleak.claims.statistics import z_value
from gradleak.client.capture import capture
from gradleak.client.defences.base import noise_seed
from gradleak.data.targets import TargetSet
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain
from gradleak.models.files import fingerprint
from gradleak.scoring.scores import ByClass
from gradleak.servers.base import SEED, Server
from gradleak.servers.base import build as server_of
from gradleak.servers.secret import Secret

METRICS = ("psnr", "ssim_gauss", "psnr_class_mean")
CASE = {"paper": "mkor"}

Arrays = Mapping[str, np.ndarray]


class Sent(NamedTuple):
    """Weights that a server sends, with its secret."""

    chain: Chain
    weights: Arrays
    secret: Secret


class Setting(NamedTuple):
    """A server, the loss of its clients, and the attack on what they share."""

    server: Server
    entry: Mapping[str, Any]  # the server's settings
    attack: Attack
    loss: str

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> "Setting":
        """Return a setting of ``server`` and ``attack``, entries of the config, and ``loss``."""
        attack = attack_of(words["attack"])
        assert isinstance(attack, Attack)
        return cls(server_of(words["server"]), words["server"], attack, words["loss"])

    def send(self, chain: Chain, weights: Arrays) -> Sent:
        """Return what the server sends instead of `weights`."""
        sent, values = self.server.corrupt(chain, dict(weights), SEED)
        mark = fingerprint(sent)
        return Sent(chain, sent, Secret(self.entry["method"], mark, self.entry, values))

    def gradient(self, sent: Sent, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Gradient of the whole network for images (K, C, H, W) and labels (K,), in float32."""
        cpu = torch.device("cpu")
        how: dict[str, Any] = {"precision": "float32", "device": cpu, "loss": self.loss}
        return capture(sent.chain, sent.weights, images, labels, **how)

    def reconstruct(self, sent: Sent, shared: Arrays, count: int) -> Reconstruction:
        """Attack the gradient `shared` of `count` images whose values are in [0, 1]."""
        mark = sent.secret.fingerprint
        kept = {name: value for name, value in shared.items() if name.startswith("fc")}
        view = AttackerView(
            sent.chain, sent.weights, kept, None, 0.0, 1.0, self.loss, count,
            secret=sent.secret, fingerprint=mark,
        )  # fmt: skip
        return self.attack.run(view, 0)


def values(
    targets: TargetSet, batch: int, chain: Chain, found: Reconstruction
) -> dict[str, np.ndarray]:
    """`METRICS` of each image of a batch (K,), 0 for those whose class was not found."""
    record = {
        "model": chain.name, "seed": 0, "batch": batch, "answer": 0, "kind": "answer",
        "classes": found.classes, "counts": found.counts, "partial": found.partial,
    }  # fmt: skip
    rows = pd.DataFrame(ByClass(targets, batch, chain, record).rows(found.images, CASE))
    return {
        name: rows.loc[rows["metric"] == name, "value"].fillna(0).to_numpy() for name in METRICS
    }


Share = Callable[[Sent, int], Arrays]  # what a client shares of one batch of a target set


def means(
    setting: Setting, sent: Sent, targets: TargetSet, share: Share
) -> Iterator[dict[str, float]]:
    """Mean of each of `METRICS` over a batch's images, batch by batch.

    0 where what the client shares is not finite, or nothing can be told from it.
    """
    for batch in range(len(targets.images)):
        try:
            found = setting.reconstruct(sent, share(sent, batch), targets.size)
        except NumericsError:
            yield dict.fromkeys(METRICS, 0.0)
            continue
        each = values(targets, batch, sent.chain, found)
        yield {name: float(numbers.mean()) for name, numbers in each.items()}


def plain(setting: Setting, targets: TargetSet) -> Share:
    """Return how a client shares the gradient as it is."""

    def share(sent: Sent, batch: int) -> Arrays:
        return setting.gradient(sent, targets.inputs(batch), targets.labels[batch])

    return share


def seed(batch: int) -> int:
    """Seed of a client's randomness, that of defences."""
    return noise_seed(0, batch)


def standard_error(numbers: np.ndarray) -> float:
    """Standard error of a mean, widened so that ±1.96 of it is Student's 95 % interval.

    Few batches tell less of their spread than a normal interval supposes. NaN for one number.
    """
    if len(numbers) < 2:
        return math.nan
    widened = float(stats.t.ppf(0.975, len(numbers) - 1)) / z_value(0.95)
    return float(numbers.std(ddof=1) / np.sqrt(len(numbers))) * widened
