"""Common parts of measurements of optimisation-based attacks: gradients, ours and a plain loop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.runner import Facts, clocked, in_turns, row
from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.client.capture import capture, pick_device
from gradleak.data import arrays
from gradleak.errors import GradleakError
from gradleak.models import files
from gradleak.models.build import load, with_statistics
from gradleak.models.chain import Chain
from gradleak.scoring.metrics.image import mse

# Forward passes for the running statistics, and images in each.
PASSES, SEEN = 4, 64

Settings = Mapping[str, Any]
# Attack on several views, each with a seed.
RunMany = Callable[
    [Sequence[AttackerView], Sequence[int]], Sequence[Reconstruction | GradleakError]
]


@dataclass(frozen=True)
class Case:
    """Gradients to attack, and the images behind them."""

    views: list[AttackerView]  # one for each image, with its label and S initializations
    images: np.ndarray  # (N, 1, C, H, W), network inputs

    @property
    def starts(self) -> np.ndarray:
        """Initializations (S, 1, C, H, W) of the first image."""
        assert self.views[0].starts is not None
        return self.views[0].starts


@dataclass(frozen=True)
class Network:
    """A network, and images in its input range."""

    chain: Chain
    weights: Mapping[str, np.ndarray]
    inputs: np.ndarray  # (N, C, H, W)
    labels: np.ndarray  # (N,)
    limits: tuple[float, float]

    def case(
        self, count: int, *, starts: int = 1, stream: int = 11, mode: str = "evaluation"
    ) -> Case:
        """Gradients of the first images, one each, and starts from N(0, 1), all float32."""
        options: dict[str, Any] = {"precision": "float32", "device": torch.device("cpu")}
        views, images = [], self.inputs[:count, None]
        for number, (image, label) in enumerate(zip(images, self.labels, strict=False)):
            sent = (self.chain, self.weights)
            shared = capture(*sent, image, np.array([label]), mode=mode, **options)
            draw = np.random.default_rng((number, stream))
            first = draw.standard_normal((starts, 1, *self.chain.input)).astype(np.float32)
            seen = (*sent, shared, (int(label),), *self.limits)
            views.append(AttackerView(*seen, starts=first, mode=mode))
        return Case(views, images)


class PlainClient:
    """A network implemented the straightforward way, and the gradient to match."""

    def __init__(
        self,
        view: AttackerView,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self._module = load(view.chain, dict(view.weights), dtype).to(device)
        self._module.train(view.mode == "training")
        names, self._parameters = zip(*self._module.named_parameters(), strict=True)
        self.shared = [torch.from_numpy(view.gradients[name]).to(device, dtype) for name in names]
        self.square = sum(g.double().square().sum().item() for g in self.shared)

    def gradient(
        self, x: torch.Tensor, target: torch.Tensor, *, graph: bool = True
    ) -> tuple[torch.Tensor, ...]:
        """Gradient of the cross-entropy by every parameter, optionally with its graph."""
        loss = functional.cross_entropy(self._module(x), target)
        return torch.autograd.grad(loss, self._parameters, create_graph=graph)

    def distance(self, found: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Squared distance of a gradient from the shared one."""
        pairs = zip(found, self.shared, strict=True)
        return torch.stack([(a - b).square().sum() for a, b in pairs]).sum()


def stored(
    model: str,
    dataset: str,
    source: tuple[str, str],
    scale: tuple[float, float],
    count: int = PASSES * SEEN,
    *,
    settle: bool = True,
) -> Network:
    """Read the first seed of a model file, and the first images of a data set and split.

    Inputs are (pixels + offset) / deviation, the two of `scale`. With `settle`, the weights get
    running statistics of these images.
    """
    models, data = files.read(model), arrays.load(dataset, *source)
    chain, (offset, deviation) = models.chains[0], scale
    pixels = data.images[:count].astype(np.float32) / 255
    inputs = ((pixels + offset) / deviation).astype(np.float32)
    weights = models.of(chain, 0)
    if settle:
        weights = settled(chain, weights, inputs)
    limits = (offset / deviation, (1.0 + offset) / deviation)
    return Network(chain, weights, inputs, data.labels, limits)


def settled(
    chain: Chain, weights: Mapping[str, np.ndarray], images: np.ndarray
) -> dict[str, np.ndarray]:
    """Weights with running statistics of images (N, C, H, W), as after training."""
    module = load(chain, with_statistics(chain, weights), torch.float32).train()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = None  # the mean over all passes
    with torch.no_grad():
        for part in np.array_split(images, max(1, len(images) // SEEN)):
            module(torch.from_numpy(part))
    state = module.state_dict().items()
    return {name: v.numpy() for name, v in state if not name.endswith("batches_tracked")}


def one_by_one(loop: Callable[[AttackerView, int], Reconstruction]) -> RunMany:
    """Attack each image by itself, by a loop for one view and seed."""
    return lambda views, seeds: [loop(*each) for each in zip(views, seeds, strict=True)]


def searched(
    run_many: RunMany, views: Sequence[AttackerView]
) -> tuple[list[Reconstruction], float]:
    """Reconstructions of all views, and the seconds that they took."""
    found, seconds = clocked(lambda: run_many(views, range(len(views))))
    for answer in found:
        if isinstance(answer, GradleakError):
            raise answer
    return list(found), seconds  # type: ignore[arg-type]


def timed(
    attack: Callable[..., RunMany],
    case: Case,
    settings: Settings,
    device: str,
    deviation: float = 1.0,
) -> Facts:
    """Seconds for an iteration of one image, and the MSE of its pixels in 0..1."""
    chosen = pick_device(device).type
    # Warm up: kernels are chosen in the first iteration.
    searched(attack({**settings, "iterations": 1}, device=chosen), case.views)
    found, seconds = searched(attack(settings, device=chosen), case.views)
    errors = [mse(images, a.images) for images, a in zip(case.images, found, strict=True)]
    return {
        "seconds": seconds / (len(found) * settings["iterations"]),
        "error": float(np.mean(errors)) * deviation**2,
        "value": float(np.mean([answer.loss for answer in found])),
        "images": len(found),
        "chain": case.views[0].chain.name,
        "device": chosen,
    }


def iteration_row(
    name: str, task: str, words: str, *, settings: Settings, rounds: int = 2, **options: Any
) -> Facts:
    """Row for an iteration of one image: `timed` of either side, in turns, on one thread."""
    sides = ("ours", "reference")
    ours, theirs = in_turns(task, sides, rounds=rounds, settings=settings, **options)
    note = (
        f"an iteration of one image, {ours['images']} images, {settings['iterations']} iterations, "
        f"float32 on {ours['device']}, one thread each, best of {rounds}; {words}; mean objective "
        f"{ours['value']:.4g} and {theirs['value']:.4g}"
    )
    return row(f"{name} {ours['chain']}, an iteration", ours, theirs, note)
