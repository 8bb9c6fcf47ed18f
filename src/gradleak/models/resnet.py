"""Residual networks as chains of layers (He et al. 2016; R-GAP Figure 4)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

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
    """Layers of a residual network.

    Parameters
    ----------
    kind
        One of `KINDS`.
    width
        Filters of the stem, the base width.
    classes
        Outputs.
    stem
        ``small``, for 32x32 images: 3x3. ``large``, for 224x224: 7x7 at stride 2, then a pool of
        3x3 at stride 2.
    cut
        Blocks, counted from 1 over all stages, whose skip is left out.
    activation
        Of every convolution; attacks that need smooth gradients take Sigmoid.

    Raises
    ------
    ConfigError
        If `cut` names a block that does not exist.
    """
    shape = KINDS[kind]
    count = sum(shape.blocks)
    twice = [block for block in cut if list(cut).count(block) > 1]
    if twice:
        raise ConfigError(f"cut: {twice[0]} is listed twice; take one out.")
    missing = sorted(set(cut) - set(range(1, count + 1)))
    if missing:
        raise ConfigError(
            f"cut: {missing[0]} is no block of {kind}, which has blocks 1 to {count}; correct it."
        )
    layers = _layers(shape, width, classes, stem, cut)
    chosen = Activation(activation)
    return tuple(
        replace(spec, activation=chosen) if isinstance(spec, ConvSpec) else spec for spec in layers
    )


def _layers(
    shape: ResNet, width: int, classes: int, stem: str, cut: Collection[int]
) -> tuple[ConvSpec | LinearSpec, ...]:
    """Layers without activations."""
    first = _convolution(width, 3, 1) if stem == "small" else _convolution(width, 7, 2)
    layers: list[ConvSpec | LinearSpec] = [
        first if stem == "small" else replace(first, pool="max3")
    ]
    number, entering = 0, width
    for stage, blocks in enumerate(shape.blocks):
        for place in range(blocks):
            number += 1
            stride = 2 if stage and not place else 1
            inner = width * 2**stage
            leaving = inner * shape.expansion
            plain = stride == 1 and entering == leaving
            layers += _block(inner, leaving, stride, skip=number not in cut, projected=not plain)
            entering = leaving
    last = layers[-1]
    assert isinstance(last, ConvSpec)
    return (*layers[:-1], replace(last, pool="global"), LinearSpec(classes))


def _block(inner: int, leaving: int, stride: int, *, skip: bool, projected: bool) -> list[ConvSpec]:
    """Convolutions of one residual block; the skip ends at the last."""
    if inner == leaving:
        body = [_convolution(inner, 3, stride)]
        end, kernel = leaving, 3
    else:
        body = [_convolution(inner, 1, 1), _convolution(inner, 3, stride)]
        end, kernel = leaving, 1
    over = len(body) + 1 if skip else 0
    return [*body, _convolution(end, kernel, 1, skip=over, projection=skip and projected)]


def _convolution(
    filters: int, kernel: int, stride: int, *, skip: int = 0, projection: bool = False
) -> ConvSpec:
    margin = kernel // 2
    return ConvSpec(
        filters,
        (kernel, kernel),
        (stride, stride),
        (margin, margin),
        skip=skip,
        norm="batch",
        projection=projection,
    )
