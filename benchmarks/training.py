"""Speed of the training engine against the loop of PyTorch's tutorials."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

from benchmarks.runner import Facts, in_turns, row
from gradleak.client.capture import pick_device
from gradleak.data import arrays
from gradleak.models import files
from gradleak.models.build import ChainModule, load, with_statistics
from gradleak.models.chain import Chain
from gradleak.training.data import Images, Split, split_of
from gradleak.training.engine import Trainer
from gradleak.training.learner import EVALUATED, seed_of
from gradleak.training.recipe import Recipe, recipe_of

# Candidate numbers of loader processes of the plain loop.
WORKERS = (0, 2)
# Unit of image counts.
COUNTED = 1000
ARITHMETIC = {"mixed": "bfloat16", "float32": "float32"}

Weights = dict[str, np.ndarray]
Loader = DataLoader[tuple[torch.Tensor, int]]


def now(device: torch.device) -> float:
    """Clock in seconds once the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _facts(ends: list[float], images: int, loss: float, accuracy: float, kind: str) -> Facts:
    """Facts of a training run with `images` per epoch, its last `loss` and `accuracy`.

    `seconds` are for `COUNTED` images, from the end of the first epoch to that of the last, with a
    validation after each.
    """
    seconds = COUNTED * (ends[-1] - ends[0]) / (images * (len(ends) - 1))
    return {"seconds": seconds, "error": loss, "accuracy": accuracy, "kind": kind, "images": images}


def ours(
    chain: Chain, weights: Mapping[str, np.ndarray], split: Split, recipe: Recipe, seed: int = 0
) -> tuple[Facts, Weights]:
    """Train with the engine, at least two epochs; return `_facts` and the final weights."""
    ends: list[float] = []
    trainer = Trainer(chain, weights, split, recipe, seed)
    found = trainer.run(on_epoch=lambda rows: ends.append(now(split.train.device)))
    seen = min(recipe.batch, len(split.train)) * split.train.steps(recipe.batch)
    last, kind = found.rows[-1], ARITHMETIC[trainer.kind]
    return _facts(ends, seen, last["train_loss"], last["validation_accuracy"], kind), found.last


class Pictures(Dataset):
    """Images as returned by torchvision's data sets: bytes in memory, converted on each access."""

    def __init__(self, images: Images, steps: list[Any]) -> None:
        self._pixels, self._labels = images.pixels.cpu().numpy(), images.labels.cpu().tolist()
        channels = self._pixels.shape[-1]
        normalised = transforms.Normalize([-images.offset] * channels, [images.std] * channels)
        self._transform = transforms.Compose([*steps, transforms.ToTensor(), normalised])

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._transform(Image.fromarray(self._pixels[index])), self._labels[index]


def plain(
    chain: Chain,
    weights: Mapping[str, np.ndarray],
    split: Split,
    recipe: Recipe,
    seed: int = 0,
    workers: int = 0,
) -> tuple[Facts, Weights]:
    """As `ours`, by `DataLoader`, torchvision and SGD; on a CPU in the engine's order."""
    device = split.train.device
    module = load(chain, with_statistics(chain, weights), torch.float32).to(device)
    options = {name: getattr(recipe, name) for name in ("momentum", "nesterov", "weight_decay")}
    optimiser = torch.optim.SGD(module.parameters(), **options)
    order = torch.Generator()
    training = _loader(split.train, recipe, workers, order)
    validation = DataLoader(Pictures(split.validation, []), EVALUATED, **_with(workers, device))
    ends, steps = list[float](), split.train.steps(recipe.batch)
    for epoch in range(recipe.epochs):
        order.manual_seed(seed_of(seed, epoch))
        module.train()
        total, seen = 0.0, 0
        for step, (inputs, labels) in enumerate(training, start=epoch * steps):
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate_at(step, recipe.epochs * steps)
            loss = functional.cross_entropy(module(inputs.to(device)), labels.to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() * len(labels)
            seen += len(labels)
        accuracy = _accuracy(module, validation, device)
        ends.append(now(device))
    left = {name: value.cpu().numpy() for name, value in module.state_dict().items()}
    return _facts(ends, seen, total / seen, accuracy, "float32"), left


def _loader(images: Images, recipe: Recipe, workers: int, order: torch.Generator) -> Loader:
    size = images.pixels.shape[1:3]
    moved = [transforms.RandomCrop(size, padding=recipe.crop)] if recipe.crop else []
    mirrored = [transforms.RandomHorizontalFlip()] if recipe.flip else []
    pictures = Pictures(images, [*moved, *mirrored])
    options = {"drop_last": len(images) >= recipe.batch, **_with(workers, images.device)}
    return DataLoader(
        pictures, recipe.batch, sampler=RandomSampler(pictures, generator=order), **options
    )


def _with(workers: int, device: torch.device) -> dict[str, Any]:
    """Options of a `DataLoader`; workers persist, so that none starts in the timed part."""
    pinned = device.type == "cuda"
    return {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": pinned}


@torch.no_grad()
def _accuracy(module: ChainModule, images: Loader, device: torch.device) -> float:
    module.eval()
    right, seen = 0, 0
    for inputs, labels in images:
        right += int((module(inputs.to(device)).argmax(1) == labels.to(device)).sum())
        seen += len(labels)
    return right / seen


def training_row(
    *, settings: Mapping[str, Any], threads: int, rounds: int = 2, **options: Any
) -> Facts:
    """Seconds for `COUNTED` images by the engine and by the plain loop, for a model's first seed.

    Errors are the mean training loss of the last epoch. `settings` are an entry of ``trainings``,
    amounts as numbers, with at least two epochs; the other options are those of `timed`.
    """
    options |= {"settings": settings, "threads": threads, "rounds": rounds}
    engine, *loops = in_turns("training:timed", (None, *WORKERS), **options)
    best = min(loops, key=lambda facts: facts["seconds"])
    tried = " and ".join(f"{facts['seconds']:.3g} s with {facts['workers']}" for facts in loops)
    note = (
        f"seconds for {COUNTED} images on {engine['device']}, {threads} threads; engine: "
        f"{engine['kind']}, channels last; against torch's DataLoader and torchvision, "
        f"{best['kind']}, {best['workers']} workers ({tried}); best of {rounds}, "
        f"{settings['epochs']} epochs of {engine['images']} images in batches of "
        f"{settings['batch']}, the first not timed; errors: training loss of the last epoch; "
        f"validation accuracy {engine['accuracy']:.3g} and {best['accuracy']:.3g}"
    )
    return row(f"training {engine['chain']}, {COUNTED} images", engine, best, note)


def timed(
    side: int | None,
    model: str,
    dataset: str,
    settings: Mapping[str, Any],
    source: tuple[str, str],
    device: str,
) -> Facts:
    """One training run in this process: by the plain loop with `side` workers, or by the engine.

    `source` is the data set and its split.
    """
    models, chosen = files.read(model), pick_device(device)
    chain, recipe = models.chains[0], recipe_of(settings)
    split = split_of(arrays.load(dataset, *source), settings, chosen)
    case = (chain, models.of(chain, 0), split, recipe)
    found, _ = ours(*case) if side is None else plain(*case, workers=side)
    return {**found, "chain": chain.name, "device": chosen.type, "workers": side}
