"""Noise on gradients: what it costs an honest server's network, and what it costs MKOR."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from gradleak.claims.statistics import wilson, z_value
from gradleak.client.defences.base import Client
from gradleak.client.defences.gaussian_noise import GaussianNoise
from gradleak.data.arrays import load
from gradleak.data.targets import TargetSet
from gradleak.data.targets import read as read_targets
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain
from gradleak.models.files import read
from gradleak.runtime.progress import progress
from gradleak.runtime.tidy import Given
from gradleak.training.data import split_of
from gradleak.training.engine import Trainer
from gradleak.training.recipe import recipe_of
from papers.mkor.batches import Arrays, Sent, Setting, Share, means, plain, seed, standard_error

COLUMNS = ["model", "level", "stops", "metric", "value", "error", "n"]
STOPPED = 0.5  # MKOR is stopped where its mean SSIM is at most this share of that without noise


class NoisyTrainer(Trainer):
    """Training on gradients with noise relative to each tensor's deviation, as in the defence."""

    level = 0.0

    def _step(self, inputs: torch.Tensor, labels: torch.Tensor, rate: float) -> torch.Tensor:
        output, loss = self._forward(inputs, labels)
        self.optimiser.forget_gradients()
        loss.backward()
        for value in self.module.parameters():
            given = value.grad
            if given is not None and self.level:
                scale = given.std(correction=0) if given.numel() > 1 else given.abs().max()
                given.add_(torch.randn_like(given), alpha=self.level * float(scale))
        self.optimiser.step(rate)
        right = (output.detach().argmax(1) == labels).sum()
        return torch.stack([loss.detach().double() * len(labels), right.double()])


def accuracies(
    chain: Chain, weights: Arrays, data: str, settings: Mapping[str, Any], levels: list[float]
) -> Iterator[tuple[float, float, int]]:
    """Accuracy on test images after training at each level, its error, and the images.

    A training that diverges counts as guessing.
    """
    images = load(data, settings["dataset"], settings["split"])
    split = split_of(images, settings, torch.device("cpu"))
    count = len(split.test)
    for level in progress(levels, "levels of noise"):
        trainer = NoisyTrainer(chain, weights, split, recipe_of(settings), 0)
        trainer.level = level
        try:
            accuracy = trainer.run().accuracy
        except NumericsError:
            accuracy = 1.0 / chain.classes
        low, high = wilson(accuracy, count)
        yield accuracy, (high - low) / (2 * z_value(0.95)), count


def noisy(setting: Setting, targets: TargetSet, level: float) -> Share:
    """Return how a client shares its gradient with noise of a level."""
    exact = plain(setting, targets)
    if not level:
        return exact
    noise = GaussianNoise(level=level)

    def share(sent: Sent, batch: int) -> Arrays:
        client = Client(sent.chain, sent.weights, targets.batch(batch), targets.labels[batch])
        return noise.apply(client, exact(sent, batch), seed(batch))

    return share


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: rows of ``accuracy`` and of MKOR's ``ssim_gauss`` for each level of noise.

    Files ``models`` have initial weights, ``dataset`` the images of ``training`` in `words`, whose
    ``levels`` are relative to the deviation of each tensor's gradient, and ``targets`` the batches
    that MKOR attacks under ``setting``. `stops` is 1 at the smallest level at which MKOR's mean
    SSIM over all images is at most `STOPPED` of that without noise. `error` is a standard error:
    half of Wilson's interval of an accuracy over 1.96, or over batches.
    """
    targets, setting = read_targets(files["targets"]), Setting.of(words["setting"])
    models, rows = read(files["models"][0]), []
    levels = [float(level) for level in words["levels"]]
    for chain in models.chains:
        weights = models.of(chain, 0)
        sent, found = setting.send(chain, weights), []
        for level in levels:
            share = noisy(setting, targets, level)
            each = np.array([m["ssim_gauss"] for m in means(setting, sent, targets, share)])
            found.append((float(each.mean()), standard_error(each), len(each)))
        values = np.array([value for value, *_ in found])
        low = np.flatnonzero(values <= STOPPED * values[0])
        first = levels[low[0]] if low.size else None
        trained = accuracies(chain, weights, files["dataset"], words["training"], levels)
        for level, similar, accuracy in zip(levels, found, trained, strict=True):
            head = chain.name, level, int(level == first)
            rows += [(*head, "ssim_gauss", *similar), (*head, "accuracy", *accuracy)]
    return pd.DataFrame(rows, columns=COLUMNS)
