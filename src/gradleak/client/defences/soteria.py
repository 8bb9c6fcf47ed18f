"""Soteria: the gradient of selected features is not shared."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from gradleak.client.defences.base import Arrays, Client, Defence
from gradleak.models.chain import Chain, LinearLayer
from gradleak.models.pools import GLOBAL, window_of
from gradleak.runtime.progress import progress

if TYPE_CHECKING:
    from torch import Tensor


class Soteria(Defence):
    """Sets columns of the first fully connected layer's gradient to zero (Sun et al. 2021).

    A column belongs to an input feature r_i of this layer. Its score is
    Σ_k ||∂r_i/∂x_k|| / |r_i(x_k)| over the images x_k of the batch, as MKOR's authors compute it.
    The columns of the lowest scores are zeroed: reproducing their features then needs the largest
    changes of an image. Implemented directly, this takes a backward pass for each of n features,
    where a gradient takes one; here features with disjoint receptive fields share one.
    """

    method: Literal["soteria"] = "soteria"
    prune: Annotated[float, Field(gt=0, lt=1)] = 0.3  # fraction of the columns; MKOR Table 7's

    def apply(self, client: Client, gradients: Arrays, seed: int) -> dict[str, np.ndarray]:
        """See `gradleak.client.defences.base.Defence`; deterministic, `seed` is ignored."""
        found = scores(client)
        name = f"{client.chain.layers[len(client.chain.convolutions)].name}.weight"
        out = {key: value.copy() for key, value in gradients.items()}
        out[name][:, found < np.quantile(found, self.prune)] = 0.0
        return out


def scores(client: Client) -> np.ndarray:
    """Return Σ_k ||∂r_i/∂x_k|| / |r_i(x_k)| of each input feature (n,) of the classifier.

    A feature that is 0 for an image adds 0 for it: its gradient is 0 too.
    """
    import torch

    from gradleak.models.build import images_at_once, load

    module = load(client.chain, client.weights, torch.float32)
    combs, total = Combs(client.chain), np.zeros(())
    size, at_once = len(client.images), images_at_once(client.chain)
    for first in progress(range(0, size, at_once), "parts of a batch"):
        images = torch.from_numpy(client.images[first : first + at_once]).float().requires_grad_()
        features = module.features(images)
        value = np.abs(features.detach().numpy().astype(float))
        norms = combs.norms(features, images).detach().numpy().astype(float)
        total = total + np.divide(norms, value, out=np.zeros_like(norms), where=value > 0).sum(0)
    return total


def cost(chain: Chain) -> dict[str, str | int]:
    """Count Soteria's backward passes through the convolutions per batch, and those of a gradient.

    All backward passes cost about the same, so their ratio is about that of times; large networks
    process the batch in parts, which multiplies both.
    """
    features = next(layer.inputs for layer in chain.layers if isinstance(layer, LinearLayer))
    passes = Combs(chain).passes if chain.convolutions else features
    return {"model": chain.name, "features": features, "passes": passes, "gradient_passes": 1}


class Combs:
    """Features of one channel with disjoint receptive fields, which share a backward pass."""

    def __init__(self, chain: Chain) -> None:
        last = chain.convolutions[-1]
        self.filters, self.grid, self.size = last.shape.filters, last.grid, chain.input[1:]
        self._first, self._step, self._field = [0, 0], [1, 1], [1, 1]
        for layer, axis in product(chain.convolutions, (0, 1)):
            shape = layer.shape
            windows = [(shape.kernel[axis], shape.stride[axis], shape.padding[axis])]
            for kernel, stride, padding in windows + _pool_windows(layer.pool, shape.output[axis]):
                self._first[axis] -= self._step[axis] * padding
                self._field[axis] += self._step[axis] * (kernel - 1)
                self._step[axis] *= stride
        self.spacing = [
            min(count, -(-field // step))
            for count, field, step in zip(self.grid, self._field, self._step, strict=True)
        ]

    @property
    def passes(self) -> int:
        """Number of backward passes per batch."""
        return self.filters * self.spacing[0] * self.spacing[1]

    def norms(self, features: Tensor, images: Tensor) -> Tensor:
        """Return ||∂r_i(x_k)/∂x_k|| (K, n) of features (K, n) of images (K, C, H, W)."""
        import torch

        maps = features.unflatten(1, (self.filters, *self.grid))
        squares = torch.zeros_like(maps)
        for channel in progress(range(self.filters), "channels"):
            for down, across in product(*map(range, self.spacing)):
                place = np.s_[:, channel, down :: self.spacing[0], across :: self.spacing[1]]
                if not maps[place].any():
                    continue  # counts as 0, whatever its derivative
                # Images are independent, and so are features so far apart.
                (found,) = torch.autograd.grad(maps[place].sum(), images, retain_graph=True)
                squares[place] = self._fields(found.square().sum(1), down, across)
        return squares.sqrt().flatten(1)

    def _fields(self, values: Tensor, down: int, across: int) -> Tensor:
        """Sum values (K, H, W) over the receptive fields of one comb."""
        import torch

        total = torch.nn.functional.pad(values.double().cumsum(1).cumsum(2), (1, 0, 1, 0))
        edges = []
        for axis, offset in ((0, down), (1, across)):
            place = torch.arange(offset, self.grid[axis], self.spacing[axis])
            start = self._first[axis] + self._step[axis] * place
            ends = torch.stack([start, start + self._field[axis]])
            edges.append(ends.clamp(0, self.size[axis]))
        (top, bottom), (left, right) = edges
        corner = total[:, bottom][:, :, right] - total[:, top][:, :, right]
        corner = corner - total[:, bottom][:, :, left] + total[:, top][:, :, left]
        return corner.clamp(min=0.0).to(values.dtype)


def _pool_windows(pool: str, size: int) -> list[tuple[int, int, int]]:
    """Kernel, stride and padding of a layer's pool along an axis of `size`, if it has one."""
    if pool == GLOBAL:
        return [(size, 1, 0)]
    window = window_of(pool)
    return [] if window is None else [(window.side, window.stride, window.padding)]
