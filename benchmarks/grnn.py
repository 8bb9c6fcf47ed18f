"""Speed of GRNN against a straightforward loop: one image, a graph of a graph."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks import searches
from benchmarks.runner import Facts
from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.optimization.engine.generators import FIRST, Layout, draw
from gradleak.attacks.optimization.grnn import STREAM, Grnn
from gradleak.client.capture import DTYPES, pick_device

# Images at a time, as many as on a CPU.
IMAGES = 16
# Iterations per second of the authors' code on one core: 1,000 for one image in 27 s, on a LeNet of
# 6 and 16 filters.
AUTHORS = 37
# Names in `PlainGenerator` of a block's parameters of `draw`.
PLACES = {"weight": "convolutions.{}.weight", "scale": "norms.{}.weight", "shift": "norms.{}.bias"}


class PlainGenerator(nn.Module):
    """One generator of PyTorch's own layers, with the weights given by `draw`."""

    def __init__(self, layout: Layout, drawn: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        first = 2 * layout.widths[0]
        self.first = nn.ConvTranspose2d(layout.latent, first, FIRST)
        self.label = nn.Linear(layout.latent, layout.classes)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(*sizes, 3, padding=1, bias=False) for sizes in layout.blocks
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _, outputs in layout.blocks)
        named = dict(self.named_parameters())
        for name, value in drawn.items():
            layer, _, kind = name.partition(".")
            if layer.startswith("block"):
                name = PLACES[kind].format(int(layer.removeprefix("block")) - 1)
            if name != "latents":
                named[name].data = torch.from_numpy(value)
        self.latents: torch.Tensor
        self.register_buffer("latents", torch.from_numpy(drawn["latents"]))

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (K, C, H, W) in 0..1 and logits (K, classes)."""
        x = functional.glu(self.first(self.latents[:, :, None, None]), 1)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
            x = functional.glu(norm(convolution(x)), 1)
        return torch.sigmoid(x), self.label(self.latents)


def attack(
    side: str, settings: searches.Settings, precision: str = "float32", device: str = "cpu"
) -> searches.RunMany:
    """Ours, all images at once, or the reference."""
    if side == "ours":
        options = {**settings, "precision": precision, "device": device}
        return Grnn(**options, failure_loss=1e9, chunk=IMAGES).run_many

    def loop(view: AttackerView, seed: int) -> Reconstruction:
        images, trace = plain(view, seed, settings, DTYPES[precision], pick_device(device))
        return Reconstruction(images.cpu().double().numpy(), "all steps", loss=min(trace))

    return searches.one_by_one(loop)


def plain(
    view: AttackerView,
    seed: int,
    settings: searches.Settings,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> tuple[torch.Tensor, list[float]]:
    """Best images (K, C, H, W) of one run, and its objectives over the gradient's squared norm."""
    attack = Grnn(**settings)
    layout = Layout(view.chain.input, view.chain.classes, attack.latent)
    drawn = draw(layout, view.batch, (seed, 0, STREAM))
    generator = PlainGenerator(layout, drawn).to(device, dtype)
    client = searches.PlainClient(view, dtype, device)
    rates: dict[str, Any] = {"lr": attack.rate, "momentum": attack.momentum}
    optimiser = torch.optim.RMSprop(generator.parameters(), **rates)
    best, trace = torch.zeros(0), [float("inf")]
    for _ in range(attack.iterations):
        pixels, logits = generator()
        x = view.low + (view.high - view.low) * pixels
        distance = client.distance(client.gradient(x, torch.softmax(logits, 1)))
        value = distance + attack.norm * distance.sqrt() + attack.tv * _variation(pixels)
        optimiser.zero_grad()
        value.backward()
        if value.item() / client.square < min(trace):
            best = x.detach()
        trace.append(value.item() / client.square)
        optimiser.step()
    return best, trace[1:]


def _variation(x: torch.Tensor) -> torch.Tensor:
    """Twice the mean squared differences of neighbouring pixels."""
    down, across = x[:, :, 1:] - x[:, :, :-1], x[:, :, :, 1:] - x[:, :, :, :-1]
    return 2.0 * (down.square().mean() + across.square().mean())


def grnn_row(given: searches.Settings, *, iterations: int, **options: Any) -> Facts:
    """Row for a model's first seed in evaluation mode; options are those of `iteration_row`."""
    words = (
        "all images at once and no graph through the network against torch.autograd and "
        "torch.optim.RMSprop, one image after the other, from the same weights"
    )
    options |= {"given": given, "settings": {"iterations": iterations}}
    found = searches.iteration_row("GRNN", "grnn:timed", words, **options)
    found["note"] += (
        f"; {1 / found['ours_s']:.3g} iterations times images per second and core of ours, the "
        f"authors' code makes {AUTHORS} on their LeNet"
    )
    return found


def timed(
    side: str,
    given: searches.Settings,
    settings: searches.Settings,
    device: str,
    images: int = IMAGES,
) -> Facts:
    """One side in this process, as `searches.timed`, on the first images `stored`."""
    case = searches.stored(**given, count=images, settle=False).case(images)
    return searches.timed(partial(attack, side), case, settings, device)
