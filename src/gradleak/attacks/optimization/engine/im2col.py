"""Convolutions of many members' images as products with unfolded windows.

The K images of a member are the last dimension: windows are then copied, and added up, in long
runs, and a layer's output needs no rearrangement for the next product.
"""

import torch
from torch import Tensor
from torch.nn import functional

from gradleak.models.chain import ConvLayer
from gradleak.models.pools import POOL
from gradleak.operators.shape import ConvShape

# Measured on one thread: from this many images on, adding windows up beats PyTorch's `fold`.
MANY = 8


def unfold(images: Tensor, layer: ConvLayer) -> Tensor:
    """Unfold images (M, C, H, W, K) to windows (M, C·k², P·K)."""
    shape = layer.shape
    (down, across), (rise, run) = shape.padding, shape.stride
    mode = "replicate" if layer.padding_mode == "replicate" else "constant"
    padded = images
    if down or across:
        padded = functional.pad(images, (0, 0, across, across, down, down), mode=mode)
    if torch.is_grad_enabled():
        return _differentiable(padded, shape)
    padded = padded.contiguous()
    steps = padded.stride()
    size = (*padded.shape[:2], *shape.kernel, *shape.output, padded.shape[4])
    view = padded.as_strided(size, (*steps[:4], steps[2] * rise, steps[3] * run, steps[4]))
    return view.flatten(4).flatten(1, 3)


def _differentiable(padded: Tensor, shape: ConvShape) -> Tensor:
    """Unfold in twice the time, but fast to differentiate."""
    flat = padded.permute(0, 4, 1, 2, 3).flatten(0, 1)
    found = functional.unfold(flat, shape.kernel, stride=shape.stride)
    return found.unflatten(0, (len(padded), -1)).permute(0, 2, 3, 1).flatten(2)


def fold(columns: Tensor, layer: ConvLayer, batch: int) -> Tensor:
    """Fold windows (M, C·k², P·K) to images (M, C, H, W, K), summing overlaps."""
    shape = layer.shape
    (height, width), (down, across) = shape.size, shape.padding
    replicated = layer.padding_mode == "replicate"
    full = height + 2 * down, width + 2 * across
    if batch < MANY or columns.device.type != "cpu" or torch.is_grad_enabled():
        flat = columns.unflatten(2, (-1, batch)).permute(0, 3, 1, 2).flatten(0, 1)
        size, padding = (full, 0) if replicated else (shape.size, shape.padding)
        found = functional.fold(flat, size, shape.kernel, padding=padding, stride=shape.stride)
        images = found.unflatten(0, (-1, batch)).permute(0, 2, 3, 4, 1)
        if not replicated:
            return images
    else:
        images = _summed(columns, shape, (*full, batch))
        if not replicated:
            return images[:, :, down : down + height, across : across + width]
    return _gathered(_gathered(images, 2, down), 3, across)


def _summed(columns: Tensor, shape: ConvShape, size: tuple[int, int, int]) -> Tensor:
    """Add windows up to images of a height, width and number, a pixel of the kernel at a time."""
    out = columns.new_zeros((len(columns), shape.channels, *size))
    (rise, run), steps = shape.stride, out.stride()
    grid = (*out.shape[:2], *shape.output, size[2])
    apart = (*steps[:2], steps[2] * rise, steps[3] * run, steps[4])
    windows = columns.view(*out.shape[:2], -1, *grid[2:]).unbind(2)
    for place, values in enumerate(windows):
        down, across = divmod(place, shape.kernel[1])
        out.as_strided(grid, apart, down * steps[2] + across * steps[3]).add_(values)
    return out


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


def _corners(images: Tensor) -> list[Tensor]:
    """Pixels of images (M, O, H, W, K) at each place of a window, (M, O, H/2, W/2, K) each."""
    return [images[:, :, i::POOL, j::POOL] for i in range(POOL) for j in range(POOL)]


def _largest(images: Tensor) -> Tensor:
    """Place in its window of the largest pixel, the first if there are several."""
    return torch.stack(_corners(images)).argmax(0)


def pooled(images: Tensor, pool: str) -> Tensor:
    """Pool images (M, O, H, W, K): ``none``, ``max`` or ``average``."""
    if pool == "none":
        return images
    if pool == "max":
        return torch.stack(_corners(images)).amax(0)
    first, *others = _corners(images)
    return sum(others, start=first) / POOL**2


def pooled_at(tangent: Tensor, images: Tensor, pool: str) -> Tensor:
    """Derivative of `pooled` at `images` in the direction `tangent`, both (M, O, H, W, K)."""
    if pool != "max":
        return pooled(tangent, pool)
    return torch.stack(_corners(tangent)).gather(0, _largest(images)[None])[0]


def unpooled(gradient: Tensor, images: Tensor, pool: str) -> Tensor:
    """Adjoint of `pooled` at `images` (M, O, H, W, K)."""
    if pool == "none":
        return gradient
    if pool == "average":
        wide = (gradient / POOL**2)[:, :, :, None, :, None]
        return wide.expand(-1, -1, -1, POOL, -1, POOL, -1).flatten(4, 5).flatten(2, 3)
    places = torch.arange(POOL**2, device=images.device).view(-1, 1, 1, 1, 1, 1)
    spread = gradient * (places == _largest(images))
    corners = spread.unflatten(0, (POOL, POOL)).permute(2, 3, 4, 0, 5, 1, 6)
    return corners.flatten(4, 5).flatten(2, 3)


def to_columns(images: Tensor) -> Tensor:
    """Reshape (M, O, Ph, Pw, K) to (M, O, P·K)."""
    return images.flatten(2)


def to_images(columns: Tensor, layer: ConvLayer, batch: int) -> Tensor:
    """Reshape an output of `layer`, (M, O, P·K), to (M, O, Ph, Pw, K)."""
    return columns.unflatten(2, (*layer.shape.output, batch))
