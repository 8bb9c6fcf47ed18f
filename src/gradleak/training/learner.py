"""One network on a device: passes over images, their memory, and the resulting weights."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from torch.nn import functional

from gradleak.errors import ConfigError
from gradleak.models.build import check_norms, fast_layout, load, with_statistics
from gradleak.models.chain import Chain
from gradleak.models.files import fingerprint
from gradleak.runtime.progress import Progress, progress
from gradleak.training.checkpoint import Arrays, Identity, State
from gradleak.training.data import Images
from gradleak.training.recipe import Recipe, arithmetic, autocast

# Images per forward pass without a backward pass.
EVALUATED = 500
# Gradients of kept tensors and workspace of convolutions, relative to the kept bytes.
OVERHEAD = 1.5
# Share of the free memory that training may use.
SHARE = 0.9


class Passed(NamedTuple):
    """Statistics of a pass over images."""

    loss: float  # mean over images, each under the weights of its own step
    accuracy: float  # mean, likewise
    rate: float  # learning rate of the last step


class Learner:
    """Network trained by SGD on a device; `seed` is that of order and augmentation."""

    def __init__(
        self,
        chain: Chain,
        weights: Mapping[str, np.ndarray],
        recipe: Recipe,
        seed: int,
        device: torch.device,
    ) -> None:
        self.chain, self.recipe, self.seed, self.device = chain, recipe, seed, device
        self.kind = arithmetic(recipe.precision, device)
        self.module = load(chain, with_statistics(chain, weights), torch.float32)
        self.layout = fast_layout(chain)
        self.module.to(device).to(memory_format=self.layout)
        self.optimiser = recipe.optimiser(self.module)
        self._evaluated = EVALUATED

    def _identity(
        self, weights: Mapping[str, np.ndarray], data: Mapping[str, Any], **more: Any
    ) -> Identity:
        """Identity for checkpoints: initial weights, images and settings."""
        network = [self.chain.describe(), fingerprint(weights)]
        own = {"seed": self.seed, "arithmetic": self.kind, "device": self.device.type}
        return identity_of(self.chain.name, network, data, self.recipe, **own, **more)

    def _bar(self, steps: int, state: State) -> Progress:
        """Progress in steps, of which each epoch or round has `steps`."""
        what = f"steps of {self.chain.name}, seed {self.seed}"
        return progress(self.recipe.epochs * steps, what, state.done * steps)

    def one_pass(
        self,
        images: Images,
        number: int,
        rate: Callable[[int], float],
        bar: Progress,
        client: int = 0,
    ) -> Passed:
        """Pass images once in random order, augmented.

        `number` and `client` determine order and augmentation, together with the seed. `rate` gives
        the learning rate of each step, from 0; `bar` counts the steps. Raises `ConfigError` if a
        norm would have a single value in each channel to normalise.
        """
        recipe = self.recipe
        check_norms(self.chain, min(len(images), recipe.batch))
        drawn = seed_of(self.seed, number, client)
        generator = torch.Generator(self.device).manual_seed(drawn)
        # Dropout uses PyTorch's global generator.
        torch.manual_seed(drawn)
        self.module.train()
        sums, seen = torch.zeros(2, dtype=torch.float64, device=self.device), 0

        def state() -> str:
            # Waits for the device, so it is called only for output.
            loss, right = (sums / seen).tolist()
            return f"epoch {number + 1}, loss {loss:.3f}, accuracy {right:.1%}"

        bar.note = state
        batches = images.augmented(recipe.batch, recipe.crop, recipe.flip, generator)
        for step, (inputs, labels) in enumerate(batches):
            last = rate(step)
            sums += self._step(inputs, labels, last)
            seen += len(labels)
            bar.update()
        loss, right = (sums / seen).tolist()
        return Passed(loss, right, last)

    def _step(self, inputs: torch.Tensor, labels: torch.Tensor, rate: float) -> torch.Tensor:
        """Take one step of SGD; return sums of losses and of correct predictions (2,)."""
        output, loss = self._forward(inputs, labels)
        self.optimiser.forget_gradients()
        loss.backward()
        self.optimiser.step(rate)
        right = (output.detach().argmax(1) == labels).sum()
        return torch.stack([loss.detach().double() * len(labels), right.double()])

    def _forward(
        self, inputs: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with autocast(self.kind, self.device):
            output = self.module(inputs.contiguous(memory_format=self.layout))
        output = output.float()
        return output, functional.cross_entropy(output, labels)

    @torch.no_grad()
    def evaluate(self, images: Images) -> tuple[float, float]:
        """Mean loss and accuracy, norms with their running statistics."""
        self.module.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for inputs, labels in images.batches(self._evaluated):
            output, loss = self._forward(inputs, labels)
            sums[0] += loss * len(labels)
            sums[1] += (output.argmax(1) == labels).sum()
        loss_, right = (sums / len(images)).tolist()
        return loss_, right

    def weights(self) -> Arrays:
        """Copy of the current parameters, running statistics and keys."""
        state = self.module.state_dict().items()
        return arrays_of({n: v for n, v in state if not n.endswith("num_batches_tracked")})

    def _put(self, weights: Mapping[str, np.ndarray]) -> None:
        there = self.module.state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                there[name].copy_(torch.from_numpy(value))

    def is_finite(self) -> bool:
        """Return whether all weights and running statistics are finite."""
        return all(bool(torch.isfinite(v).all()) for v in self.module.state_dict().values())

    @contextmanager
    def within_memory(self, images: Images) -> Iterator[None]:
        """Raise `ConfigError`, naming the batch that fits, if a batch of `images` does not."""
        try:
            self._check_memory(images)
            yield
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            raise self._too_large(None) from error

    def _check_memory(self, images: Images) -> None:
        """Refuse a batch by the memory that a few images keep for the backward pass."""
        # In evaluation mode running statistics stay unchanged.
        self.module.eval()

        def kept(count: int) -> int:
            inputs = images.inputs(images.pixels[:count])
            return bytes_kept(lambda: self._forward(inputs, images.labels[:count])[1])

        weights = sum(value.nbytes for value in self.module.parameters())
        # Memory of one more image, since weights are kept in any case; beside the batch
        # there are gradients, momentum and the best weights.
        most = largest_batch(kept(2) - kept(1), 3 * weights, self.device)
        if most < self.recipe.batch and most < len(images):
            raise self._too_large(most)
        # Once, since later an accelerator's memory counts as reserved, though it is reusable.
        self._evaluated = max(1, min(EVALUATED, most))

    def _too_large(self, fits: int | None) -> ConfigError:
        remedy = f"{fits} would fit: set batch to that" if fits else "not even one image would fit"
        if fits is None:
            remedy = f"try batch: {max(1, self.recipe.batch // 2)}"
        return ConfigError(
            f"{self.chain.name}: batch: {self.recipe.batch} does not fit in the memory of "
            f"{self.device.type}; {remedy}, or free memory."
        )


def bytes_kept(loss: Callable[[], torch.Tensor]) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once."""
    sizes: dict[int, int] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        kept = loss()
    # The graph keeps the storages alive, so that no address is reused.
    del kept
    return sum(sizes.values())


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def largest_batch(per_image: float, fixed: float, device: torch.device) -> int:
    """Batch that fits in free memory for training, a power of two up to 2^20; 0 if none does.

    `per_image` are the bytes that an image keeps for the backward pass, `fixed` those of any batch.
    """
    most = (SHARE * free_bytes(device) - fixed) / (OVERHEAD * max(per_image, 1.0))
    return 0 if most < 1 else 2 ** min(20, int(most).bit_length() - 1)


def arrays_of(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Copies of tensors as arrays."""
    return {n: value.detach().contiguous().cpu().numpy().copy() for n, value in tensors.items()}


def identity_of(
    name: str, network: Any, data: Mapping[str, Any], recipe: Any, **more: Any
) -> Identity:
    """Identity for checkpoints: hash of a network's JSON values, images, settings."""
    hashed = hashlib.sha256(json.dumps(network, sort_keys=True).encode()).hexdigest()[:16]
    settings = json.loads(json.dumps(asdict(recipe)))
    return Identity({"name": name, "hash": hashed}, dict(data), {**settings, **more})


def seed_of(seed: int, number: int, client: int = 0) -> int:
    """Seed of order and augmentation of a pass; non-federated training is client 0."""
    entropy = (seed, number, client) if client else (seed, number)
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


def _out_of_memory(error: MemoryError | RuntimeError) -> bool:
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "not enough memory" in str(error).lower()
