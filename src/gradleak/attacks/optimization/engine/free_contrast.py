"""Contrast that a network's gradient does not tell: norms that divide it out.

Behind a convolution, a batch norm in training mode gives the same output for an image x as for
m + α (x − m), α > 0, with m where the convolution's input is 0, so that both have one gradient.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor, nn

from gradleak.attacks.optimization.engine.module_gradients import NORMS
from gradleak.models.build import ChainModule
from gradleak.models.chain import Chain
from gradleak.reading.model_checks import Size

# Images whose contrast may change alone, or a batch's in common.
Scope = Literal["image", "batch"]
# Standard deviation of an image about the means of its channels, as a share of the input range:
# 0.20 in CIFAR-10 and CIFAR-100, 0.23 in ImageNet, 0.30 in MNIST, on average.
CONTRAST = 0.22
# Largest change of the outputs, in float64, that counts as none.
EQUAL = 1e-6
IMAGES = 2
# In place of a norm's small constant: less than any variance but that of a dead channel.
TINY = 1e-30


def free_contrast(network: nn.Module | Chain, size: Size, mode: str) -> Scope | None:
    """Return whose contrast does not change the outputs, and so no gradient; None if it does.

    `network` is as attackers run it, in `mode`, on images `size` (C, H, W). It is tried in float64
    and without the small constants of norms, under which this holds exactly.
    """
    if isinstance(network, Chain):
        normed = any(part.normed for part in network.parts)
    else:
        normed = any(hasattr(part, "eps") for part in network.modules())
    if not normed:
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = ChainModule(network) if isinstance(network, Chain) else deepcopy(network)
        images = torch.rand(IMAGES, *size, dtype=torch.float64)
        module.to("cpu", torch.float64).eval()
        for part in module.modules():
            if hasattr(part, "eps"):
                part.eps = TINY  # type: ignore[assignment]
            if isinstance(part, NORMS):
                part.train(mode == "training")
        try:
            middle = _zero(module, images)
            lower = middle + 0.5 * (images - middle)
            before, alone, both = (
                module(x.clone()) for x in (images, torch.cat([lower[:1], images[1:]]), lower)
            )
        except Exception:  # it need not take float64, two images or these values
            return None
    if _equal(before, alone):
        return "image"
    return "batch" if _equal(before, both) else None


def contrast(x: Tensor, scope: Scope) -> tuple[Tensor, Tensor]:
    """Part of images (M, K, C, H, W) that contrast scales, and their contrast.

    Deviations from the means of channels, over each image or a batch; and the root mean square of
    each image's own deviations, over it or the batch.
    """
    own = x - x.mean((-2, -1), keepdim=True)
    if scope == "image":
        return own, own.square().mean((-3, -2, -1), keepdim=True).sqrt()
    return x - x.mean((1, -2, -1), keepdim=True), own.square().mean((1, 2, 3, 4), True).sqrt()


def without_contrast(slope: Tensor, x: Tensor, scope: Scope) -> Tensor:
    """Remove from a slope in images (M, K, C, H, W) its part along their contrast."""
    apart, _ = contrast(x, scope)
    over = (-3, -2, -1) if scope == "image" else (1, 2, 3, 4)
    along = (slope * apart).sum(over, keepdim=True)
    return slope - along / apart.square().sum(over, keepdim=True).clamp(min=1e-30) * apart


def _zero(module: nn.Module, images: Tensor) -> Tensor:
    """Image at which the first layer's input is 0, of preprocessing that is a scale and a shift."""
    seen: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        seen.extend(one.clone() for one in given[:1])

    layers = [part for part in module.modules() if not [*part.children()]]
    hooks = [p.register_forward_pre_hook(keep) for p in layers if [*p.parameters()]]
    try:
        module(torch.stack([torch.zeros_like(images[0]), torch.ones_like(images[0])]))
    finally:
        for hook in hooks:
            hook.remove()
    if not seen or seen[0].shape != images.shape:
        return torch.zeros_like(images[0])
    black, white = seen[0]
    found = -black / (white - black)
    return found if bool(found.isfinite().all()) else torch.zeros_like(black)


def _equal(before: Tensor, after: Tensor) -> bool:
    return bool((after - before).abs().max() < EQUAL * (before - before.mean(0)).abs().max())
