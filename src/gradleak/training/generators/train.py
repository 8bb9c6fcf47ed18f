"""Training of the class-conditional autoencoder; a job that was killed resumes."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from gradleak.errors import NumericsError
from gradleak.runtime.progress import Progress, progress
from gradleak.training import checkpoint
from gradleak.training.checkpoint import Epochs, OnRows
from gradleak.training.data import Images
from gradleak.training.generators.conditional_vae import Autoencoder, Sizes, loss_of
from gradleak.training.learner import arrays_of, identity_of, seed_of
from gradleak.training.optimisers import adam_step

CURVE = ("epoch", "rate", "loss", "mse", "kl")


@dataclass(frozen=True)
class Recipe:
    """Settings of the training run."""

    epochs: int  # passes over the images
    batch: int = 64  # images per step; a last, smaller batch of several is left out
    rate: float = 1e-3  # initial learning rate of Adam; it falls to 0 as (1 + cos(π t)) / 2
    seed: int = 0  # of initialization, order and noise
    checkpoint: int = 5  # epochs between checkpoints


class Trainer:
    """Train one autoencoder on `images` in [0, 1] with labels, on their device.

    Order and noise follow from (seed, epoch) alone, so on a CPU with the same number of threads the
    same seed gives the same weights, interrupted or not. `source` identifies the images and `code`,
    a hash, the code in the checkpoint.
    """

    def __init__(
        self,
        sizes: Sizes,
        images: Images,
        recipe: Recipe,
        source: Mapping[str, Any],
        code: str,
    ) -> None:
        self.sizes, self.images, self.recipe = sizes, images, recipe
        # Initialise without affecting PyTorch's global generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.module = Autoencoder(sizes)
        self.module.to(images.device).to(memory_format=torch.channels_last)
        self._parameters = dict(self.module.named_parameters())
        # Both moments of Adam.
        pairs = product(("first", "second"), self._parameters.items())
        self._moments = {f"{k}.{name}": torch.zeros_like(value) for k, (name, value) in pairs}
        own = {"device": images.device.type, "code": code}
        self.identity = identity_of("conditional_vae", asdict(sizes), source, recipe, **own)

    def run(self, path: Path, on_epoch: OnRows) -> list[dict[str, Any]]:
        """Train to the end; return the curve, a record of `CURVE` an epoch.

        `path` is the checkpoint; `on_epoch` is called with the curve so far after each epoch.
        Raises `NumericsError` if the loss is no longer finite (the last checkpoint stays), and
        `ArtifactError` if the checkpoint is damaged or of another training run.
        """
        state = checkpoint.load(path, self.identity, Epochs(), "the generator", "epoch")
        if state.done:
            self._restore(state)
        recipe, steps = self.recipe, self.images.steps(self.recipe.batch)

        def pack() -> None:
            state.weights, state.momentum = arrays_of(self._parameters), arrays_of(self._moments)

        with progress(recipe.epochs * steps, "steps", state.done * steps) as bar:
            for epoch in checkpoint.epochs(path, self.identity, state, recipe, on_epoch, pack):
                state.rows.append(self._epoch(epoch, bar))
        return state.rows

    def _epoch(self, epoch: int, bar: Progress) -> dict[str, Any]:
        images, recipe = self.images, self.recipe
        steps = images.steps(recipe.batch)
        generator = torch.Generator(images.device).manual_seed(seed_of(recipe.seed, epoch))
        sums, seen, rate = torch.zeros(2, dtype=torch.float64, device=images.device), 0, 0.0
        batches = images.augmented(recipe.batch, 0, False, generator)
        for number, (inputs, labels) in enumerate(batches):
            done = epoch * steps + number
            rate = recipe.rate * (1.0 + math.cos(math.pi * done / (recipe.epochs * steps))) / 2.0
            shape = (len(labels), self.sizes.latent)
            noise = torch.randn(shape, generator=generator, device=images.device)
            sums += len(labels) * self._step(inputs, labels, noise, rate, done)
            seen += len(labels)
            bar.update()
        error, divergence = (sums / seen).tolist()
        if not math.isfinite(error + divergence):
            raise NumericsError(
                f"The generator's training diverged in epoch {epoch + 1} (mean squared error "
                f"{error:g}, KL {divergence:g}); lower rate: {recipe.rate:g}."
            )
        loss = 0.5 * math.prod(self.sizes.shape) * math.log(error) + divergence
        return {"epoch": epoch + 1, "rate": rate, "loss": loss, "mse": error, "kl": divergence}

    def _step(
        self,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        noise: torch.Tensor,
        rate: float,
        done: int,
    ) -> torch.Tensor:
        """Take one step of Adam; return error and divergence (2,)."""
        error, divergence = self.module(inputs, labels, noise)
        loss = loss_of(error, divergence, math.prod(self.sizes.shape))
        parameters: list[torch.Tensor] = list(self._parameters.values())
        slopes = torch.autograd.grad(loss, parameters)
        moments, count = list(self._moments.values()), len(parameters)
        steps = [torch.tensor(float(done)) for _ in parameters]
        with torch.no_grad():
            adam_step(parameters, slopes, (moments[:count], moments[count:], steps), rate)
        return torch.stack([error.detach().double(), divergence.detach().double()])

    @torch.no_grad()
    def _restore(self, state: Epochs) -> None:
        stored = state.weights | state.momentum
        for name, value in (self._parameters | self._moments).items():
            value.copy_(torch.from_numpy(stored[name]))
