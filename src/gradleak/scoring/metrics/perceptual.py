"""LPIPS: distance of two images in the features of a trained network (Zhang et al. 2018)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradleak.data import backbones
from gradleak.errors import DataError, require_extra
from gradleak.scoring.metrics.image import overflowed

if TYPE_CHECKING:
    import torch

# Layers of torchvision's networks whose outputs LPIPS uses, each a ReLU or a fire module.
LAYERS = {"alex": (1, 4, 7, 9, 11), "squeeze": (1, 4, 7, 9, 10, 11, 12), "vgg": (3, 8, 15, 22, 29)}
# LPIPS' means and deviations of the channels, of inputs in [-1, 1].
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)
# Added to norms, as in LPIPS.
TINY = 1e-10
# AlexNet has no output for images below 31 pixels; FedKL's smallest have 32.
SMALLEST = 32
# Pixels per pass through a network: 256 images of 32x32, four of 256x256, so that VGG-16's
# features stay below 400 MiB.
AT_ONCE = 2**18


class Lpips:
    """LPIPS v0.1 with one of its three networks, ``alex``, ``squeeze`` or ``vgg``.

    d(x, y) = Σ_l mean_hw Σ_c w_lc (x̂_lchw − ŷ_lchw)², where x̂_l are the features of layer l, of
    unit length over the channels at each position, and w_l ≥ 0 the weights that Zhang et al. fitted
    to human judgements. `path` is the file of the network's weights (`gradleak.data.backbones`);
    `DataError` if it, or that of w in the package lpips, is missing or damaged.
    """

    def __init__(self, network: str, path: str | os.PathLike[str]) -> None:
        import torch

        self._network = backbones.empty(network).eval().requires_grad_(False)
        tensors = {
            key.removeprefix(backbones.PREFIX): torch.from_numpy(value)
            for key, value in backbones.read(path, network).items()
        }
        self._network.load_state_dict(tensors, assign=True)
        self._layers = LAYERS[network]
        self._heads = _heads(network)

    def __call__(self, originals: np.ndarray, reconstructions: np.ndarray) -> np.ndarray:
        """Return the distance (N,), float64, of each pair of images (N, 3, H, W).

        They are in [-1, 1] by LPIPS' convention; H and W are at least `SMALLEST`.
        """
        import torch

        size = max(1, AT_ONCE // int(np.prod(originals.shape[2:])))
        out = []
        with torch.inference_mode(), _one_thread():
            for start in range(0, len(originals), size):
                part = slice(start, start + size)
                # Both in batches of one size, so that equal images get equal features to the bit.
                one, other = self._features(originals[part]), self._features(reconstructions[part])
                total = np.zeros(len(one[0]))
                for first, second, head in zip(one, other, self._heads, strict=True):
                    gaps = ((first - second).square() * head).sum(dim=1)
                    total += gaps.mean(dim=(1, 2)).double().numpy()
                out.append(total)
        return np.concatenate(out) if out else np.zeros(0)

    def _features(self, images: np.ndarray) -> list[torch.Tensor]:
        """Features (N, C_l, H_l, W_l) of each layer, of unit length over C_l."""
        import torch

        shift, scale = (torch.tensor(values).view(3, 1, 1) for values in (SHIFT, SCALE))
        here = (torch.from_numpy(images.astype(np.float32)) - shift) / scale
        out = []
        for number, layer in enumerate(self._network[: self._layers[-1] + 1]):
            here = layer(here)
            if number in self._layers:
                length = here.square().sum(dim=1, keepdim=True).sqrt()
                out.append(here / (length + TINY))
        return out


def standard(images: Sequence[np.ndarray]) -> np.ndarray:
    """Convert pixels (C, H, W) to LPIPS' input: clipped to [0, 1], then scaled to [-1, 1].

    C is 1 or 3; the result is float64 (N, 3, H', W'): grey is repeated, sides below `SMALLEST` are
    enlarged to it bilinearly.
    """
    return 2.0 * _enlarged(np.clip(np.stack(images), 0.0, 1.0)) - 1.0


def as_stored(images: Sequence[np.ndarray]) -> np.ndarray:
    """Convert images as `standard`, but as in FedKL's authors' code: on 0..255, blue first."""
    return _enlarged(overflowed(np.stack(images)))[:, ::-1]


def _enlarged(images: np.ndarray) -> np.ndarray:
    if images.shape[1] == 1:
        images = np.repeat(images, 3, axis=1)
    height, width = (max(side, SMALLEST) for side in images.shape[2:])
    if (height, width) == images.shape[2:]:
        return images
    import torch

    with _one_thread():
        enlarged = torch.nn.functional.interpolate(
            torch.from_numpy(images), size=(height, width), mode="bilinear", align_corners=False
        )
    return np.asarray(enlarged.numpy())


def _heads(network: str) -> list[torch.Tensor]:
    """Return weights w_l (C_l, 1, 1) of each layer, from the package lpips."""
    import torch

    require_extra("pipeline", "lpips")
    # Located without importing the package, which would import half a dozen others.
    package = importlib.util.find_spec("lpips")
    places = list((package and package.submodule_search_locations) or [])
    path = Path(places[0] if places else "lpips") / "weights" / "v0.1" / f"{network}.pth"
    if not path.is_file():
        raise DataError(f"{path} is missing; install the package lpips 0.1.4 again.")
    found = torch.load(path, map_location="cpu", weights_only=True)
    names = [f"lin{number}.model.1.weight" for number in range(len(LAYERS[network]))]
    return [found[name].view(-1, 1, 1) for name in names]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread, so that sums do not depend on the number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
