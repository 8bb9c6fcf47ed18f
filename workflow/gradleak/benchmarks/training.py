"""Speed of the training engine against the loop that PyTorch's own tutorials write."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

from gradleak.benchmarks.measure import alternately
from gradleak.benchmarks.speed import row
from gradleak.benchmarks.worker import memory_mib
from gradleak.data import arrays
from gradleak.gradients import pick_device
from gradleak.memory import keep_freed_memory
from gradleak.models import files
from gradleak.models.build import ChainModule, load, with_statistics
from gradleak.models.chain import Chain
from gradleak.training.data import Images, Split
from gradleak.training.engine import Trainer
from gradleak.training.learner import EVALUATED, seed_of
from gradleak.training.outputs import recipe_of, split_of
from gradleak.training.recipe import Recipe

# Processes that load images for the plain loop: what it may choose from.
WORKERS = (0, 2)
# What images are counted in.
COUNTED = 1000
ROUNDS = 2
ARITHMETIC = {"mixed": "bfloat16", "float32": "float32"}


@dataclass(frozen=True)
class Outcome:
    """What one training gave.

    Attributes
    ----------
    seconds
        For `COUNTED` training images, from the end of the first epoch to that of the last, with a
        validation after each.
    loss
        Mean loss of the last epoch over its training images.
    accuracy
        On the validation images after the last epoch.
    kind
        Arithmetic.
    weights
        After the last epoch.
    """

    seconds: float
    loss: float
    accuracy: float
    kind: str
    weights: dict[str, np.ndarray] = field(repr=False)


class Clock:
    """Moments at which epochs ended."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._moments = device, list[float]()

    def mark(self) -> None:
        """Note that an epoch has ended, once the device has done all that it was given."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._moments.append(time.perf_counter())

    def seconds(self, images: int) -> float:
        """Seconds for `COUNTED` images, with `images` in an epoch, the first left out."""
        spent = self._moments[-1] - self._moments[0]
        return COUNTED * spent / (images * (len(self._moments) - 1))


def ours(
    chain: Chain, weights: Mapping[str, np.ndarray], split: Split, recipe: Recipe, seed: int = 0
) -> Outcome:
    """Train with the engine, at least two epochs."""
    clock = Clock(split.train.device)
    trainer = Trainer(chain, weights, split, recipe, seed)
    found = trainer.run(on_epoch=lambda rows: clock.mark())
    last = found.rows[-1]
    return Outcome(
        clock.seconds(_seen(split, recipe)),
        last["train_loss"],
        last["validation_accuracy"],
        ARITHMETIC[trainer.kind],
        found.last,
    )


def _seen(split: Split, recipe: Recipe) -> int:
    """Training images that an epoch passes."""
    return min(recipe.batch, len(split.train)) * split.train.steps(recipe.batch)


class Pictures(Dataset):
    """Images as torchvision's data sets give them: bytes in memory, each made a picture anew."""

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
) -> Outcome:
    """Train in float32 as one writes it first: `DataLoader`, torchvision's transforms, SGD.

    On a CPU images come in the order in which the engine takes them.
    """
    device = split.train.device
    module = load(chain, with_statistics(chain, weights), torch.float32).to(device)
    optimiser = torch.optim.SGD(
        module.parameters(),
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
    )
    order = torch.Generator()
    training = _loader(split.train, recipe, workers, order)
    validation = DataLoader(Pictures(split.validation, []), EVALUATED, **_with(workers, device))
    clock, steps = Clock(device), split.train.steps(recipe.batch)
    for epoch in range(recipe.epochs):
        order.manual_seed(seed_of(seed, epoch))
        module.train()
        total, seen = 0.0, 0
        for step, (inputs, labels) in enumerate(training):
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate_at(epoch * steps + step, recipe.epochs * steps)
            inputs, labels = inputs.to(device), labels.to(device)
            loss = functional.cross_entropy(module(inputs), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() * len(labels)
            seen += len(labels)
        accuracy = _accuracy(module, validation, device)
        clock.mark()
    left = {name: value.cpu().numpy() for name, value in module.state_dict().items()}
    return Outcome(clock.seconds(seen), total / seen, accuracy, ARITHMETIC["float32"], left)


def _loader(
    images: Images, recipe: Recipe, workers: int, order: torch.Generator
) -> DataLoader[tuple[torch.Tensor, int]]:
    size = images.pixels.shape[1:3]
    moved = [transforms.RandomCrop(size, padding=recipe.crop)] if recipe.crop else []
    mirrored = [transforms.RandomHorizontalFlip()] if recipe.flip else []
    pictures = Pictures(images, [*moved, *mirrored])
    return DataLoader(
        pictures,
        recipe.batch,
        sampler=RandomSampler(pictures, generator=order),
        drop_last=len(images) >= recipe.batch,
        **_with(workers, images.device),
    )


def _with(workers: int, device: torch.device) -> dict[str, Any]:
    """How a `DataLoader` loads; workers stay, so that none starts in what is timed."""
    pinned = device.type == "cuda"
    return {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": pinned}


@torch.no_grad()
def _accuracy(
    module: ChainModule,
    images: DataLoader[tuple[torch.Tensor, int]],
    device: torch.device,
) -> float:
    module.eval()
    right, seen = 0, 0
    for inputs, labels in images:
        right += int((module(inputs.to(device)).argmax(1) == labels.to(device)).sum())
        seen += len(labels)
    return right / seen


def training_row(
    model: str,
    dataset: str,
    settings: Mapping[str, Any],
    *,
    source: tuple[str, str],
    device: str,
    threads: int,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Seconds for `COUNTED` images by the engine and by the plain loop.

    `ours_error` and `reference_error` are the mean training loss of the last epoch.

    Parameters
    ----------
    model
        Model file, whose first draw is trained.
    dataset
        Arrays of the images.
    settings
        An entry of ``trainings``, amounts as numbers, with two epochs at least.
    source
        Data set and split of `dataset`.
    device
        auto | cpu | cuda | mps.
    threads
        Of either side.
    rounds
        Runs of each, of which the fastest counts.
    """
    shared: dict[str, Any] = {
        "model": model,
        "dataset": dataset,
        "source": source,
        "device": device,
    }
    shared["settings"] = {**settings, "milestones": list(settings["milestones"])}
    jobs = {"ours": shared | {"workers": None}}
    jobs |= {f"plain{workers}": shared | {"workers": workers} for workers in WORKERS}
    module = "gradleak.benchmarks.training"
    found = alternately(module, jobs, rounds=rounds, threads=threads)
    engine = found.pop("ours")
    best = min(found.values(), key=lambda facts: facts["seconds"])
    tried = " and ".join(
        f"{facts['seconds']:.3g} s with {facts['workers']}" for facts in found.values()
    )
    note = (
        f"seconds for {COUNTED} images on {engine['device']}, {threads} threads; engine: "
        f"{engine['kind']}, channels last; against torch's DataLoader and torchvision, "
        f"{best['kind']}, {best['workers']} workers ({tried}); best of {rounds}, "
        f"{settings['epochs']} epochs of {engine['images']} images in batches of "
        f"{settings['batch']}, the first not timed; errors: training loss of the last epoch; "
        f"validation accuracy {engine['accuracy']:.3g} and {best['accuracy']:.3g}"
    )
    return row(
        f"training {engine['chain']}, {COUNTED} images",
        engine["seconds"],
        best["seconds"],
        note,
        ours_mib=engine["mib"],
        reference_mib=best["mib"],
        ours_error=engine["loss"],
        reference_error=best["loss"],
    )


def _measured(job: dict[str, Any]) -> dict[str, Any]:
    """One training in this process; facts for `training_row`."""
    before = memory_mib("VmRSS")
    settings, device = job["settings"], pick_device(job["device"])
    models = files.read(job["model"])
    chain, recipe = models.chains[0], recipe_of(settings)
    split = split_of(arrays.load(job["dataset"], *job["source"]), settings, device)
    case = (chain, models.of(chain, 0), split, recipe)
    workers = job["workers"]
    found = asdict(ours(*case) if workers is None else plain(*case, workers=workers))
    del found["weights"]
    return {
        **found,
        "mib": memory_mib("VmHWM") - before,
        "chain": chain.name,
        "device": device.type,
        "images": _seen(split, recipe),
        "workers": workers,
    }


if __name__ == "__main__":
    keep_freed_memory()  # as every job of the pipeline does; the reference gets the same
    print(json.dumps(_measured(json.loads(sys.argv[1]))))
