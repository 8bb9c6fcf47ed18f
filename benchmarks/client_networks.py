"""Networks of clients that the library attacks, as anybody writes them in PyTorch.

`lenet` is DLG's, with sigmoids; `convnet` has the shapes of breaching's ConvNet, of width 16;
`cnn6` is R-GAP's, with one output.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import read_tensors, write_tensors
from gradleak.runtime.progress import progress

LOG = logging.getLogger(__name__)
SHAPE = (3, 32, 32)
CLASSES = 10
WIDTH = 16
SPREAD = 0.5  # of DLG's weights, which are uniform
RATE, BATCH = 3e-3, 50  # of training, by Adam


@dataclass(frozen=True)
class Images:
    """Images and labels of a split, taken in their order and again from the first."""

    pixels: np.ndarray  # uint8 (N, C, H, W)
    labels: np.ndarray  # (N,)

    def take(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (count, C, H, W) in [0, 1] and labels (count,) from number `first` on."""
        chosen = np.arange(first, first + count) % len(self.labels)
        images = torch.from_numpy(self.pixels[chosen]).float() / 255.0
        return images, torch.from_numpy(np.asarray(self.labels[chosen], dtype=np.int64))


def lenet() -> nn.Module:
    """DLG's LeNet: three convolutions of 12 filters."""
    layers: list[nn.Module] = []
    for channels, stride in ((3, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(channels, 12, 5, stride, 2), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(768, CLASSES))


def convnet() -> nn.Module:
    """Eight convolutions of 3x3 with batch norm and ReLU, MaxPool(3) after the last ones."""
    layers: list[nn.Module] = []
    channels = SHAPE[0]
    for number, times in enumerate((1, 2, 2, 4, 4, 4, 4, 4)):
        layers += [nn.Conv2d(channels, times * WIDTH, 3, padding=1)]
        layers += [nn.BatchNorm2d(times * WIDTH), nn.ReLU()]
        layers += [nn.MaxPool2d(3)] if number in (5, 7) else []
        channels = times * WIDTH
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(36 * WIDTH, CLASSES))


def cnn6() -> nn.Module:
    """R-GAP's CNN6: no biases, one output."""
    layers: list[nn.Module] = []
    sizes = ((3, 12, 4, 2, 2), (12, 36, 3, 2, 1), (36, 36, 3, 1, 1), (36, 36, 3, 1, 1))
    for size in (*sizes, (36, 64, 3, 2, 1), (64, 128, 3, 1, 1)):
        layers += [nn.Conv2d(*size, bias=False), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3200, 1, bias=False))


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "lenet": lenet,
    "convnet": convnet,
    "cnn6": cnn6,
}


def untrained(network: str, seed: int) -> nn.Module:
    """A network in evaluation mode with PyTorch's initial weights; LeNet's are DLG's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = NETWORKS[network]().eval()
        if network == "lenet":
            for value in module.parameters():
                nn.init.uniform_(value, -SPREAD, SPREAD)
    return module


def trained(
    network: str, train: Images, test: Images, settings: Mapping[str, Any], path: Path
) -> nn.Module:
    """A network in evaluation mode after a short training, read from `path` if it was made so.

    Parameters
    ----------
    network
        A name of `NETWORKS`.
    train, test
        Images to train on, and those whose accuracy is logged.
    settings
        ``images`` (number to train on), ``epochs``, and what else identifies the weights.
    path
        Of the weights.
    """
    module, known = untrained(network, 0), {"network": network, **settings}
    try:
        arrays, metadata = read_tensors(path)
        if {key: metadata.get(key) for key in known} == known:
            module.load_state_dict({key: torch.from_numpy(value) for key, value in arrays.items()})
            return module.eval()
    except ArtifactError:
        pass
    count = min(settings["images"], len(train.labels))
    fit(module, *train.take(0, count), settings["epochs"])
    images, labels = test.take(0, min(500, len(test.labels)))
    with torch.no_grad():
        accuracy = float((module(images).argmax(1) == labels).double().mean())
    LOG.info("%s, trained on %d images: accuracy %.0f%%", network, count, 100 * accuracy)
    state = {key: value.numpy() for key, value in module.state_dict().items()}
    write_tensors(path, state, {**known, "accuracy": accuracy})
    return module


def fit(module: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """Train a network for some epochs."""
    optimiser = torch.optim.Adam(module.parameters(), RATE)
    module.train()
    draw = torch.Generator().manual_seed(0)
    for _ in progress(range(epochs), "epochs"):
        for part in torch.randperm(len(labels), generator=draw).split(BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(images[part]), labels[part]).backward()
            optimiser.step()
    module.eval()
