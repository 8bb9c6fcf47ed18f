"""Convolutions of many members' images as products with unfolded windows."""

from __future__ import annotations

import torch
from torch.nn import functional

from gradleak.models.chain import ConvLayer


def unfold(images: torch.Tensor, layer: ConvLayer) -> torch.Tensor:
    """Windows (M, C·k², K·P) of images (M, K, C, H, W)."""
    shape = layer.shape
    flat = images.flatten(0, 1)
    if torch.is_grad_enabled():
        found = functional.unfold(flat, shape.kernel, padding=shape.padding, stride=shape.stride)
    else:
        found = _copied(flat, layer)
    return found.unflatten(0, images.shape[:2]).transpose(1, 2).flatten(2)


def _copied(images: torch.Tensor, layer: ConvLayer) -> torch.Tensor:
    """As PyTorch's unfold in half its time, but slow to differentiate."""
    (down, across), (rise, run) = layer.shape.padding, layer.shape.stride
    padded = functional.pad(images, (across, across, down, down)).contiguous()
    batch, channels = padded.shape[:2]
    steps = padded.stride()
    size = (batch, channels, *layer.shape.kernel, *layer.shape.output)
    view = padded.as_strided(size, (*steps, steps[2] * rise, steps[3] * run))
    return view.reshape(batch, -1, layer.shape.positions)


def fold(columns: torch.Tensor, layer: ConvLayer, batch: int) -> torch.Tensor:
    """Images (M, K, C, H, W) whose pixels sum up all windows (M, C·k², K·P) that hold them."""
    shape = layer.shape
    split = columns.unflatten(2, (batch, -1)).transpose(1, 2).flatten(0, 1)
    images = functional.fold(
        split, shape.size, shape.kernel, padding=shape.padding, stride=shape.stride
    )
    return images.unflatten(0, (-1, batch))


def to_columns(images: torch.Tensor) -> torch.Tensor:
    """(M, K, O, Ph, Pw) as (M, O, K·P)."""
    return images.flatten(3).transpose(1, 2).flatten(2)


def to_images(columns: torch.Tensor, layer: ConvLayer, batch: int) -> torch.Tensor:
    """What leaves `layer`, (M, O, K·P), as (M, K, O, Ph, Pw)."""
    split = columns.unflatten(2, (batch, layer.shape.positions)).transpose(1, 2)
    return split.unflatten(3, layer.shape.output)
