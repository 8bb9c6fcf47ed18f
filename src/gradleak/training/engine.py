"""Training loop: one network, one split, one recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradleak.errors import NumericsError
from gradleak.models.chain import Chain
from gradleak.runtime.progress import Progress
from gradleak.training import checkpoint
from gradleak.training.checkpoint import Arrays, Epochs, OnRows
from gradleak.training.data import Split
from gradleak.training.learner import Learner, arrays_of
from gradleak.training.recipe import Recipe


@dataclass
class Trained:
    """Result of a training run."""

    weights: Arrays  # parameters and running statistics of the best validation accuracy
    last: Arrays  # the same after the last epoch
    epoch: int  # best epoch, from 1; the first of equally good ones
    accuracy: float  # of `weights` on the test images, which chose nothing
    # per epoch: epoch, rate, train_loss, train_accuracy, validation_loss, validation_accuracy
    rows: list[dict[str, Any]]


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Row of the best epoch, the first of equally good ones."""
    return max(rows, key=itemgetter("validation_accuracy"), default={"validation_accuracy": -1.0})


class Trainer(Learner):
    """Train one network; a run that was killed resumes at its last checkpoint.

    The order of images and their augmentation follow from (seed, epoch) alone, so on a CPU with
    the same number of threads the same seed gives the same weights, interrupted or not. `weights`
    are the initial ones, the images of `split` lie on the training device; `source` identifies them
    in the checkpoint, and `code` is the hash of the code: a checkpoint of other code may not end
    with the same weights.
    """

    def __init__(
        self,
        chain: Chain,
        weights: Mapping[str, np.ndarray],
        split: Split,
        recipe: Recipe,
        seed: int,
        source: Mapping[str, Any] | None = None,
        code: str = "",
    ) -> None:
        super().__init__(chain, weights, recipe, seed, split.train.device)
        self.split = split
        self.identity = self._identity(weights, {**(source or {}), **split.sizes}, code=code)

    def run(self, path: Path | None = None, on_epoch: OnRows = lambda rows: None) -> Trained:
        """Train to the end, and evaluate the best weights on the test images.

        `path` is the checkpoint, if any; `on_epoch` is called with the curve so far after each
        epoch. Raises `NumericsError` if the loss or a weight is no longer finite (the last
        checkpoint stays), `ConfigError` if a batch does not fit in memory, and `ArtifactError` if
        the checkpoint is damaged or of another training run.
        """
        images, recipe = self.split.train, self.recipe
        state = checkpoint.load(path, self.identity, Epochs(), self.chain.name, "epoch")
        self._restore(state)

        def pack() -> None:
            state.weights, state.momentum = self.weights(), self._momentum()

        left = checkpoint.epochs(path, self.identity, state, recipe, on_epoch, pack)
        with self.within_memory(images), self._bar(images.steps(recipe.batch), state) as bar:
            for epoch in left:
                row = self._epoch(epoch, bar, path)
                if row["validation_accuracy"] > _best(state.rows)["validation_accuracy"]:
                    state.best = self.weights()
                state.rows.append(row)
            last = self.weights()
            self._put(state.best)
            _, accuracy = self.evaluate(self.split.test)
        return Trained(state.best, last, _best(state.rows)["epoch"], accuracy, state.rows)

    def _epoch(self, epoch: int, bar: Progress, path: Path | None) -> dict[str, Any]:
        """One pass over the training images, then the validation images."""
        recipe, images = self.recipe, self.split.train
        steps = images.steps(recipe.batch)

        def rate(step: int) -> float:
            return recipe.rate_at(epoch * steps + step, recipe.epochs * steps)

        passed = self.one_pass(images, epoch, rate, bar)
        validation_loss, validation = self.evaluate(self.split.validation)
        self._check_finite(epoch, (passed.loss, validation_loss), path)
        return {
            "epoch": epoch + 1,
            "rate": passed.rate,
            "train_loss": passed.loss,
            "train_accuracy": passed.accuracy,
            "validation_loss": validation_loss,
            "validation_accuracy": validation,
        }

    def _momentum(self) -> Arrays:
        held, named = self.optimiser.buffers, self.module.named_parameters()
        return arrays_of({name: held[value] for name, value in named if value in held})

    def _restore(self, state: Epochs) -> None:
        self._put(state.weights)
        parameters = dict(self.module.named_parameters())
        for name, value in state.momentum.items():
            like = parameters[name]
            self.optimiser.buffers[like] = torch.empty_like(like).copy_(torch.from_numpy(value))

    def _check_finite(self, epoch: int, losses: tuple[float, float], path: Path | None) -> None:
        """Raise `NumericsError` after `epoch` if a loss or a weight is not finite."""
        if np.isfinite(losses).all() and self.is_finite():
            return
        kept = epoch - epoch % self.recipe.checkpoint
        left = (
            f"the checkpoint of epoch {kept} is kept in {path}, to be moved away before a new start"
            if path is not None and kept
            else "no checkpoint had been written"
        )
        raise NumericsError(
            f"{self.chain.name}: training diverged in epoch {epoch + 1} (loss {losses[0]:g}, on "
            f"validation {losses[1]:g}); {left}; lower rate: {self.recipe.rate:g}."
        )
