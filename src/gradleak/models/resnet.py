"""Residual networks as chains of layers (He et al. 2016; R-GAP Figure 4)."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from gradleak.errors import ConfigError
from gradleak.models.activations import Activation
from gradleak.models.chain import ConvSpec, LinearSpec


@dataclass(frozen=True)
class ResNet:
    """Block structure of a residual network."""

    # Residual blocks per stage; all but the first stage halve the image and double the width.
    blocks: tuple[int, ...]
    # 1: two 3x3 convolutions per block. 4: a bottleneck of 1x1, 3x3 and 1x1, the last four times as
    # wide.
    expansion: int


KINDS = {
    "resnet18": ResNet((2, 2, 2, 2), 1),
    "resnet20": ResNet((3, 3, 3), 1),
    "resnet32": ResNet((5, 5, 5), 1),
    "resnet34": ResNet((3, 4, 6, 3), 1),
    "resnet101": ResNet((3, 4, 23, 3), 4),
}


def specs(
    kind: str,
    width: int,
    classes: int,
    stem: str = "small",
    cut: Collection[int] = (),
    activation: str = "relu",
) -> tuple[ConvSpec | LinearSpec, ...]:
    """Layers of a residual network, a `kind` of `KINDS`, with `classes` outputs.

    `width` is the number of filters of the `stem`: ``small``, for 32x32 images, is 3x3; ``large``,
    for 224x224, is 7x7 at stride 2, then a pool of 3x3 at stride 2. The skips of the blocks `cut`,
    counted from 1 over all stages, are left out. `activation` follows every convolution; attacks
    that need smooth gradients take Sigmoid. Raises `ConfigError` if `cut` names a block twice, or
    one that does not exist.
    """
    shape = KINDS[kind]
    count = sum(shape.blocks)
    if twice := [block for block in cut if list(cut).count(block) > 1]:
        raise ConfigError(f"cut: {twice[0]} is listed twice; take one out.")
    if missing := sorted(set(cut) - set(range(1, count + 1))):
        raise ConfigError(
            f"cut: {missing[0]} is not a block of {kind}, with blocks 1 to {count}; correct it."
        )
    small = stem == "small"
    layers = [_convolution(width, 3, 1) if small else _convolution(width, 7, 2, pool="max3")]
    number, entering = 0, width
    for stage, blocks in enumerate(shape.blocks):
        for place in range(blocks):
            number += 1
            stride, inner = 2 if stage and not place else 1, width * 2**stage
            leaving = inner * shape.expansion
            plain = stride == 1 and entering == leaving
            layers += _block(inner, leaving, stride, skip=number not in cut, projected=not plain)
            entering = leaving
    layers[-1] = replace(layers[-1], pool="global")
    chosen = Activation(activation)
    return *(replace(layer, activation=chosen) for layer in layers), LinearSpec(classes)


def _block(inner: int, leaving: int, stride: int, *, skip: bool, projected: bool) -> list[ConvSpec]:
    """Convolutions of one residual block; the skip ends at the last."""
    if inner == leaving:
        body, kernel = [_convolution(inner, 3, stride)], 3
    else:
        body, kernel = [_convolution(inner, 1, 1), _convolution(inner, 3, stride)], 1
    over = len(body) + 1 if skip else 0
    return [*body, _convolution(leaving, kernel, 1, skip=over, projection=skip and projected)]


def _convolution(filters: int, kernel: int, stride: int, **more: Any) -> ConvSpec:
    size, step, margin = ((side, side) for side in (kernel, stride, kernel // 2))
    return ConvSpec(filters, size, step, margin, norm="batch", **more)
