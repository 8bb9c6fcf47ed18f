"""Convolutions of many members' images as products with unfolded windows."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from gradleak.models.chain import ConvLayer
from gradleak.models.pools import POOL
from gradleak.operators.shape import ConvShape


def unfold(images: Tensor, layer: ConvLayer) -> Tensor:
    """Unfold images (M, K, C, H, W) to windows (M, C·k², K·P)."""
    shape = layer.shape
    flat = images.flatten(0, 1)
    if layer.padding_mode == "replicate":
        (down, across), shape = shape.padding, replace(shape, padding=(0, 0), size=_padded(shape))
        flat = functional.pad(flat, (across, across, down, down), mode="replicate")
    if torch.is_grad_enabled():
        found = functional.unfold(flat, shape.kernel, padding=shape.padding, stride=shape.stride)
    else:
        found = _copied(flat, shape)
    return found.unflatten(0, images.shape[:2]).transpose(1, 2).flatten(2)


def _padded(shape: ConvShape) -> tuple[int, int]:
    return shape.size[0] + 2 * shape.padding[0], shape.size[1] + 2 * shape.padding[1]


def _copied(images: Tensor, shape: ConvShape) -> Tensor:
    """Unfold as PyTorch in half its time, but slow to differentiate."""
    (down, across), (rise, run) = shape.padding, shape.stride
    padded = functional.pad(images, (across, across, down, down)).contiguous()
    batch, channels = padded.shape[:2]
    steps = padded.stride()
    size = (batch, channels, *shape.kernel, *shape.output)
    view = padded.as_strided(size, (*steps, steps[2] * rise, steps[3] * run))
    return view.reshape(batch, -1, shape.positions)


def fold(columns: Tensor, layer: ConvLayer, batch: int) -> Tensor:
    """Fold windows (M, C·k², K·P) to images (M, K, C, H, W), summing overlaps."""
    shape = layer.shape
    split = columns.unflatten(2, (batch, -1)).transpose(1, 2).flatten(0, 1)
    if layer.padding_mode == "replicate":
        images = functional.fold(split, _padded(shape), shape.kernel, stride=shape.stride)
        images = _gathered(_gathered(images, 2, shape.padding[0]), 3, shape.padding[1])
    else:
        images = functional.fold(
            split, shape.size, shape.kernel, padding=shape.padding, stride=shape.stride
        )
    return images.unflatten(0, (-1, batch))


def _gathered(padded: Tensor, dim: int, margin: int) -> Tensor:
    """Adjoint of replicated padding along `dim`: margins are added to the edges."""
    if not margin:
        return padded
    length = padded.shape[dim]
    first = padded.narrow(dim, 0, margin + 1).sum(dim, keepdim=True)
    last = padded.narrow(dim, length - margin - 1, margin + 1).sum(dim, keepdim=True)
    if length == 2 * margin + 1:
        return padded.sum(dim, keepdim=True)
    inner = padded.narrow(dim, margin + 1, length - 2 * margin - 2)
    return torch.cat([first, inner, last], dim)


def _blocks(images: Tensor) -> Tensor:
    """Reshape images (..., H, W) to blocks (..., H/2, W/2, 4)."""
    split = images.unflatten(-1, (-1, POOL)).unflatten(-3, (-1, POOL))
    return split.transpose(-3, -2).flatten(-2)


def pooled(images: Tensor, pool: str) -> Tensor:
    """Pool images (M, K, O, H, W): ``none``, ``max`` or ``average``."""
    if pool == "none":
        return images
    blocks = _blocks(images)
    return blocks.amax(-1) if pool == "max" else blocks.mean(-1)


def pooled_at(tangent: Tensor, images: Tensor, pool: str) -> Tensor:
    """Derivative of `pooled` at `images` in the direction `tangent`, both (M, K, O, H, W)."""
    if pool != "max":
        return pooled(tangent, pool)
    largest = _blocks(images).argmax(-1, keepdim=True)
    return _blocks(tangent).gather(-1, largest).squeeze(-1)


def unpooled(gradient: Tensor, images: Tensor, pool: str) -> Tensor:
    """Adjoint of `pooled` at `images` (M, K, O, H, W)."""
    if pool == "none":
        return gradient
    if pool == "average":
        wide = gradient.repeat_interleave(POOL, -1).repeat_interleave(POOL, -2)
        return wide / POOL**2
    largest = _blocks(images).argmax(-1, keepdim=True)
    places = torch.arange(POOL**2, device=images.device) == largest
    spread = (gradient.unsqueeze(-1) * places).unflatten(-1, (POOL, POOL))
    return spread.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def to_columns(images: Tensor) -> Tensor:
    """Reshape (M, K, O, Ph, Pw) to (M, O, K·P)."""
    return images.flatten(3).transpose(1, 2).flatten(2)


def to_images(columns: Tensor, layer: ConvLayer, batch: int) -> Tensor:
    """Reshape an output of `layer`, (M, O, K·P), to (M, K, O, Ph, Pw)."""
    split = columns.unflatten(2, (batch, layer.shape.positions)).transpose(1, 2)
    return split.unflatten(3, layer.shape.output)
