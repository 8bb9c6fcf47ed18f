"""Networks whose forward pass torch.fx cannot trace: run as they are, without a list of layers."""

from typing import Any

import torch
from torch import nn

from gradleak.reading.fx_graph import Reading, Size, Untraced, outputs, read, sample_images
from gradleak.reading.gradients import passing


def read_or_run(model: nn.Module, size: Size) -> Reading:
    """As `read`, but without layers where the forward pass can be run and not be traced."""
    try:
        return read(model, size)
    except Untraced as error:
        counted = multiply_adds(model, sample_images(model, size))
        return Reading(size, outputs(model, size), (), None, str(error), counted)


def multiply_adds(model: nn.Module, images: torch.Tensor) -> int:
    """As `Reading.multiply_adds`, of the modules that run."""
    counts: list[int] = []

    def count(module: nn.Module, _: Any, out: torch.Tensor) -> None:
        assert isinstance(module, kinds)
        counts.append(out[0].numel() * module.weight[0].numel())

    kinds = (nn.Conv2d, nn.Linear)
    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, kinds)]
    try:
        with torch.no_grad(), passing(model, "evaluation"), torch.random.fork_rng(devices=[]):
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts)
