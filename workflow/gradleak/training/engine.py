"""The training loop: one network, one split, one recipe."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from tqdm import tqdm

from gradleak.errors import ConfigError, NumericsError
from gradleak.models.build import load, with_statistics
from gradleak.models.chain import Chain
from gradleak.models.files import fingerprint
from gradleak.training import checkpoint
from gradleak.training.checkpoint import Arrays, Identity, State
from gradleak.training.data import Images, Split
from gradleak.training.memory import bytes_kept, largest_batch
from gradleak.training.recipe import Recipe, arithmetic, autocast

LOG = logging.getLogger("gradleak")
# Images that pass at once where nothing is kept for a pass back.
EVALUATED = 500
# Seconds between two updates of the progress bar's numbers, which wait for the device.
SHOWN = 1.0


@dataclass(frozen=True)
class Trained:
    """What a training gives.

    Attributes
    ----------
    weights
        Parameters and running statistics after the epoch of the best validation accuracy.
    last
        The same after the last epoch.
    epoch
        That epoch, from 1; of several equally good ones the first.
    accuracy
        Share of right answers of `weights` on the test images, which chose nothing.
    rows
        One record an epoch: epoch, rate, train_loss, train_accuracy, validation_loss,
        validation_accuracy.
    """

    weights: Arrays
    last: Arrays
    epoch: int
    accuracy: float
    rows: list[dict[str, Any]]


class Trainer:
    """Trains one network; a run that was killed goes on at its last checkpoint.

    The order of images and their augmentation follow from (seed, epoch) alone, so on a CPU with
    the same number of threads the same seed gives the same weights, interrupted or not.

    Parameters
    ----------
    chain, weights
        The network and where it starts.
    split
        Images, on the device that trains.
    recipe
        Settings.
    seed
        Of order and augmentation.
    source
        What the checkpoint says of the images: data set, split, checksum and sizes.
    code
        Hash of the code: a checkpoint of other code may not end with the same weights.
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
        self.chain, self.split, self.recipe, self.seed = chain, split, recipe, seed
        self.device = split.train.device
        self.kind = arithmetic(recipe.precision, self.device)
        self.module = load(chain, with_statistics(chain, weights), torch.float32)
        self.module.to(self.device).to(memory_format=torch.channels_last)
        self.optimiser = recipe.optimiser(self.module)
        described = json.dumps([chain.describe(), fingerprint(weights)], sort_keys=True)
        self._evaluated = EVALUATED
        self.identity = Identity(
            {"name": chain.name, "hash": hashlib.sha256(described.encode()).hexdigest()[:16]},
            {**(source or {}), **split.sizes},
            {
                **json.loads(json.dumps(asdict(recipe))),
                "seed": seed,
                "arithmetic": self.kind,
                "device": self.device.type,
                "code": code,
            },
        )

    def run(
        self,
        path: Path | None = None,
        on_epoch: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
    ) -> Trained:
        """Train to the end.

        Parameters
        ----------
        path
            The checkpoint; none is kept without.
        on_epoch
            Called with the curve so far after each epoch.

        Raises
        ------
        NumericsError
            If the loss or a weight is no longer finite; the last checkpoint stays.
        ConfigError
            If a batch does not fit in memory.
        ArtifactError
            If the checkpoint is damaged or another training's.
        """
        state = State() if path is None else checkpoint.load(path, self.identity)
        if state.epoch:
            self._restore(state)
            LOG.info("%s goes on after epoch %d, from %s", self.chain.name, state.epoch, path)
        try:
            self._check_memory()
            return self._run(state, path, on_epoch)
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            raise self._too_large(None) from error

    def _run(
        self,
        state: State,
        path: Path | None,
        on_epoch: Callable[[list[dict[str, Any]]], None],
    ) -> Trained:
        """All epochs that are left."""
        epochs, steps = self.recipe.epochs, self.split.train.steps(self.recipe.batch)
        # `disable=None`: a bar on a terminal, nothing in a log file.
        with tqdm(
            total=epochs * steps,
            initial=state.epoch * steps,
            disable=None,
            desc=f"{self.chain.name}, seed {self.seed}",
            unit="step",
        ) as bar:
            for epoch in range(state.epoch, epochs):
                row = self._epoch(epoch, bar, path, state)
                if row["validation_accuracy"] > self._best(state.rows):
                    state.best = self.weights()
                state.rows.append(row)
                state.epoch = epoch + 1
                on_epoch(state.rows)
                if path is not None and (
                    state.epoch % self.recipe.checkpoint == 0 or state.epoch == epochs
                ):
                    state.weights, state.momentum = self.weights(), self._momentum()
                    checkpoint.save(path, self.identity, state)
        return self._finished(state)

    @staticmethod
    def _best(rows: list[dict[str, Any]]) -> float:
        return max((row["validation_accuracy"] for row in rows), default=-1.0)

    def _finished(self, state: State) -> Trained:
        """Score the best weights on the test images."""
        last = self.weights()
        best = next(
            row["epoch"]
            for row in state.rows
            if row["validation_accuracy"] == self._best(state.rows)
        )
        self._put(state.best)
        _, accuracy = self.evaluate(self.split.test)
        return Trained(state.best, last, best, accuracy, state.rows)

    def _epoch(self, epoch: int, bar: Any, path: Path | None, state: State) -> dict[str, Any]:
        """One pass over the training images, then the validation images."""
        recipe, images = self.recipe, self.split.train
        steps = images.steps(recipe.batch)
        generator = torch.Generator(self.device).manual_seed(seed_of(self.seed, epoch))
        # Dropout draws from PyTorch's own generator.
        torch.manual_seed(seed_of(self.seed, epoch))
        self.module.train()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        seen, shown = 0, time.monotonic()
        batches = images.augmented(recipe.batch, recipe.crop, recipe.flip, generator)
        for step, (inputs, labels) in enumerate(batches):
            rate = recipe.rate_at(epoch * steps + step, recipe.epochs * steps)
            sums += self._step(inputs, labels, rate)
            seen += len(labels)
            bar.update()
            if not bar.disable and time.monotonic() - shown > SHOWN:
                loss, right = (sums / seen).tolist()
                bar.set_postfix(epoch=epoch + 1, loss=f"{loss:.3f}", accuracy=f"{right:.1%}")
                shown = time.monotonic()
        loss, right = (sums / seen).tolist()
        validation_loss, validation = self.evaluate(self.split.validation)
        self._check_finite(epoch, (loss, validation_loss), path, state)
        return {
            "epoch": epoch + 1,
            "rate": rate,
            "train_loss": loss,
            "train_accuracy": right,
            "validation_loss": validation_loss,
            "validation_accuracy": validation,
        }

    def _step(self, inputs: torch.Tensor, labels: torch.Tensor, rate: float) -> torch.Tensor:
        """One step of SGD; sums of losses and of right answers (2,)."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        output, loss = self._forward(inputs, labels)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        right = (output.detach().argmax(1) == labels).sum()
        return torch.stack([loss.detach().double() * len(labels), right.double()])

    def _forward(
        self, inputs: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with autocast(self.kind, self.device):
            output = self.module(inputs)
        output = output.float()
        return output, functional.cross_entropy(output, labels)

    @torch.no_grad()
    def evaluate(self, images: Images) -> tuple[float, float]:
        """Mean loss and share of right answers, norms with their running statistics."""
        self.module.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for inputs, labels in images.batches(self._evaluated):
            output, loss = self._forward(inputs, labels)
            sums[0] += loss * len(labels)
            sums[1] += (output.argmax(1) == labels).sum()
        loss_, right = (sums / len(images)).tolist()
        return loss_, right

    def weights(self) -> Arrays:
        """Parameters and running statistics as they are now, copied."""
        return {
            name: value.detach().contiguous().cpu().numpy().copy()
            for name, value in self.module.state_dict().items()
            if not name.endswith("num_batches_tracked")
        }

    def _momentum(self) -> Arrays:
        held = self.optimiser.state
        return {
            name: held[parameter]["momentum_buffer"].contiguous().cpu().numpy().copy()
            for name, parameter in self.module.named_parameters()
            if held[parameter].get("momentum_buffer") is not None
        }

    def _put(self, weights: Arrays) -> None:
        """Copy weights into the network."""
        there = self.module.state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                there[name].copy_(torch.from_numpy(value))

    def _restore(self, state: State) -> None:
        self._put(state.weights)
        parameters = dict(self.module.named_parameters())
        for name, value in state.momentum.items():
            like = parameters[name]
            buffer = torch.empty_like(like).copy_(torch.from_numpy(value))
            self.optimiser.state[like]["momentum_buffer"] = buffer

    def _check_finite(
        self, epoch: int, losses: tuple[float, float], path: Path | None, state: State
    ) -> None:
        """Refuse losses, weights and running statistics that are not finite."""
        finite = all(bool(torch.isfinite(v).all()) for v in self.module.state_dict().values())
        if np.isfinite(losses).all() and finite:
            return
        kept = state.epoch - state.epoch % self.recipe.checkpoint
        left = (
            f"the checkpoint of epoch {kept} is kept in {path}, to be moved away before a new start"
            if path is not None and kept
            else "no checkpoint had been written"
        )
        raise NumericsError(
            f"{self.chain.name}: training diverged in epoch {epoch + 1} (loss {losses[0]:g}, on "
            f"validation {losses[1]:g}); {left}; lower rate: {self.recipe.rate:g}."
        )

    def _check_memory(self) -> None:
        """Refuse a batch that will not fit, by what a few images keep for the pass back."""
        images = self.split.train
        # In evaluation mode no running statistics move.
        self.module.eval()

        def kept(count: int) -> int:
            inputs = images.inputs(images.pixels[:count])
            return bytes_kept(lambda: self._forward(inputs, images.labels[:count])[1])

        weights = sum(value.nbytes for value in self.module.parameters())
        # What one image more keeps, since weights are kept whatever their number; beside the batch
        # there are gradients, momentum and the best weights.
        most = largest_batch(kept(2) - kept(1), 3 * weights, self.device)
        if most < self.recipe.batch and most < len(images):
            raise self._too_large(most)
        # Once, since later an accelerator's memory is reserved, though it could be used again.
        self._evaluated = max(1, min(EVALUATED, most))

    def _too_large(self, fits: int | None) -> ConfigError:
        if fits is None:
            remedy = f"try batch: {max(1, self.recipe.batch // 2)}"
        elif fits:
            remedy = f"{fits} would fit: set batch to that"
        else:
            remedy = "not even one image would fit"
        return ConfigError(
            f"{self.chain.name}: batch: {self.recipe.batch} does not fit in the memory of "
            f"{self.device.type}; {remedy}, or free memory."
        )


def seed_of(seed: int, epoch: int) -> int:
    """What an epoch's order and augmentation are drawn from."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0] >> 1)


def _out_of_memory(error: MemoryError | RuntimeError) -> bool:
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "not enough memory" in str(error).lower()
