"""Training images, kept on the device as bytes; shifted and enlarged there in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch.nn import functional

from gradleak.data.arrays import Dataset
from gradleak.data.catalogue import shrunk
from gradleak.data.resize import AS_IT_IS, Fit, fit, taps
from gradleak.errors import DataError

# Images enlarged at a time.
ENLARGED = 16
PARTS = ("train", "validation", "test")
# Settings that determine the images of the parts.
DRAWN = ("seed", "offset", "std", "size", "resize")


@dataclass(frozen=True)
class Images:
    """Some images of a data set on a device."""

    pixels: torch.Tensor  # uint8 (N, H, W, C), as convolutions with channels last read them
    labels: torch.Tensor  # int64 (N,)
    offset: float = 0.0  # inputs are (pixels / 255 + offset) / std
    std: float = 1.0
    size: Fit = AS_IT_IS  # enlargement of a batch of pixels; their margins are already cropped

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """Device of the images."""
        return self.labels.device

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, S, S) of an input."""
        height, width, channels = self.pixels.shape[1:]
        side, times = self.size.side, self.size.repeat
        return (channels, side, side) if side else (channels, times * height, times * width)

    @classmethod
    def of(cls, images: np.ndarray, labels: np.ndarray, device: torch.device, **more: Any) -> Self:
        """Put images (N, C, H, W), uint8, and labels (N,) on a device; `more` are other fields."""
        pixels = torch.from_numpy(images).permute(0, 2, 3, 1).contiguous().to(device)
        return cls(pixels, torch.from_numpy(labels).to(device), **more)

    def part(self, chosen: np.ndarray) -> Images:
        """Images at positions `chosen` (n,)."""
        places = torch.from_numpy(chosen).to(self.device)
        return replace(self, pixels=self.pixels[places], labels=self.labels[places])

    def inputs(self, pixels: torch.Tensor) -> torch.Tensor:
        """Convert pixels (B, H, W, C) to inputs (B, C, S, S), channels last in memory."""
        side, times = self.size.side, self.size.repeat
        if side is not None:
            pixels = bilinear(pixels, side)
        elif times > 1:
            pixels = pixels.repeat_interleave(times, 1).repeat_interleave(times, 2)
        scaled = pixels.to(torch.float32).div_(255.0).add_(self.offset).div_(self.std)
        return scaled.permute(0, 3, 1, 2)

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs and labels in order, without augmentation."""
        for first in range(0, len(self), size):
            part = slice(first, first + size)
            yield self.inputs(self.pixels[part]), self.labels[part]

    def augmented(
        self, size: int, crop: int, flip: bool, generator: torch.Generator
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs and labels in random order, cropped from a margin of zeros and mirrored.

        Each image has its own shift, uniform in −crop … crop along both axes, and is mirrored with
        probability 1/2. A last batch of fewer than `size` is left out, unless it is the first.
        """
        order = torch.randperm(len(self), generator=generator, device=self.device)
        for first in range(0, max(len(self) - size, 0) + 1, size):
            chosen = order[first : first + size]
            pixels = self.pixels[chosen]
            if crop or flip:
                pixels = _moved(pixels, crop, flip, generator)
            yield self.inputs(pixels), self.labels[chosen]

    def steps(self, size: int) -> int:
        """Number of batches of an epoch."""
        return max(len(self) // size, 1)


def _moved(pixels: torch.Tensor, crop: int, flip: bool, generator: torch.Generator) -> torch.Tensor:
    """Shift and mirror each image (B, H, W, C) by one look-up of pixels."""
    batch, height, width = pixels.shape[:3]

    def draw(most: int) -> torch.Tensor:
        return torch.randint(most + 1, (batch, 1, 1), generator=generator, device=pixels.device)

    padded = functional.pad(pixels, (0, 0, crop, crop, crop, crop))
    rows = draw(2 * crop) + torch.arange(height, device=pixels.device)[None, :, None]
    columns = torch.arange(width, device=pixels.device)[None, None, :]
    if flip:
        columns = torch.where(draw(1) > 0, width - 1 - columns, columns)
    columns = draw(2 * crop) + columns
    images = torch.arange(batch, device=pixels.device)[:, None, None]
    return padded[images, rows, columns]


def bilinear(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """Pixels (B, H, H, C), uint8, enlarged to (B, S, S, C) by `gradleak.data.resize.bilinear`.

    Products and sums are those of that function, one by one, so that the bytes are the same.
    """
    out = pixels.new_empty((len(pixels), size, size, pixels.shape[3]))
    between = taps(len(pixels[0]), size)
    first, second, share = (torch.from_numpy(x).to(pixels.device) for x in between)
    rest = 1.0 - share
    for start in range(0, len(pixels), ENLARGED):
        part = slice(start, start + ENLARGED)
        above = pixels[part, first] * rest[:, None, None]
        below = pixels[part, second] * share[:, None, None]
        total = above[:, :, first].mul_(rest[:, None])
        total += above[:, :, second].mul_(share[:, None])
        total += below[:, :, first].mul_(rest[:, None])
        total += below[:, :, second].mul_(share[:, None])
        out[part] = total.round_()
    return out


@dataclass(frozen=True)
class Split:
    """Disjoint images for training, for choosing the best epoch, and for reporting."""

    train: Images
    validation: Images
    test: Images

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images in each part."""
        return {part: len(images) for part, images in vars(self).items()}


def divide(
    data: Dataset,
    counts: dict[str, int],
    *,
    seed: int,
    offset: float,
    std: float,
    device: torch.device,
    size: int | None = None,
    resize: str = "repeat",
) -> Split:
    """Shuffle a data set by `seed` and divide it into the parts of `Split`.

    `counts` are the images for ``train``, ``validation`` and ``test``; if the data set has fewer in
    all, parts shrink in proportion. For `offset`, `std` and `device` see `Images`, for `size` and
    `resize` `gradleak.data.resize.fit`. Raises `DataError` if a part would be empty, or images
    cannot be brought to `size`.
    """
    height, width = data.images.shape[2:]
    plan = fit((height, width), size, resize, "trainings")
    there, wanted = len(data.labels), sum(counts.values())
    order = np.random.default_rng(seed).permutation(there)
    parts, first = {}, 0
    for name, taken in shrunk(counts, there).items():
        if not taken:
            raise DataError(
                f"{data.dataset}-{data.split} has {there} images, too few for {counts[name]} of "
                f"{wanted} to {name}; lower the other numbers, or take a larger data set."
            )
        chosen = np.sort(order[first : first + taken])
        first += taken
        pixels, labels = data.images[chosen][:, :, plan.rows, plan.columns], data.labels[chosen]
        parts[name] = Images.of(pixels, labels, device, offset=offset, std=std, size=plan)
    return Split(**parts)


def split_of(data: Dataset, settings: Mapping[str, Any], device: torch.device) -> Split:
    """Images for an entry of ``trainings``, amounts as numbers."""
    counts = {part: settings[part] for part in PARTS}
    return divide(data, counts, device=device, **{key: settings[key] for key in DRAWN})
