"""Preprocessing ahead of the first layer, a·x + b, which an attacker undoes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from gradleak.reading.fx_graph import run_graph
from gradleak.reading.model_checks import Size


@dataclass(frozen=True)
class Preprocessing:
    """Scale and shift of each value of the image."""

    scale: np.ndarray  # float64 (C, H, W), nowhere 0
    shift: np.ndarray  # float64 (C, H, W)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Compute a·x + b of images (..., C, H, W)."""
        return images * self.scale + self.shift

    def undo(self, values: np.ndarray) -> np.ndarray:
        """Recover images (..., C, H, W) from inputs of the first layer."""
        return (values - self.shift) / self.scale

    def bounds(self, low: float, high: float) -> tuple[float, float]:
        """Range over all channels for images with values from `low` to `high`."""
        ends = np.stack([low * self.scale, high * self.scale]) + self.shift
        return float(ends.min()), float(ends.max())


def is_given(module: fx.GraphModule, node: fx.Node) -> bool:
    """True if no trainable parameter enters a node."""
    left, seen = [node], {node}
    while left:
        one = left.pop()
        if one.op == "get_attr":
            path, _, name = str(one.target).rpartition(".")
            if isinstance(getattr(module.get_submodule(path), name), nn.Parameter):
                return False
        new = [given for given in one.all_input_nodes if given not in seen]
        seen.update(new)
        left += new
    return True


def preprocessing(module: fx.GraphModule, node: fx.Node, size: Size) -> Preprocessing | None:
    """Preprocessing of the image (C, H, W) up to a node; None if it cannot be undone."""
    like = next(module.parameters())
    images = torch.stack([torch.zeros(size), torch.ones(size)]).to(like)
    values = []

    def keep(step: fx.Node, value: Any) -> None:
        if step is node:
            # A later in-place operation may change it.
            values.append(value.double().cpu().numpy().copy())

    run_graph(module, images, keep)
    ((black, white),) = values
    found = Preprocessing(white - black, black)
    fits = np.isfinite(black).all() and np.isfinite(found.scale).all() and found.scale.all()
    return found if fits else None
