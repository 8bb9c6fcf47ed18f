"""VGG-16 as a chain of layers (Simonyan and Zisserman 2015, configuration D)."""

from dataclasses import replace

from gradleak.models.activations import Activation
from gradleak.models.chain import ConvSpec, LinearSpec

# Filters of the convolutions of each block, which ends with a pool.
BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
# Nodes of the fully connected layers before the last, and their dropout rate.
NODES, DROPOUT = 4096, 0.5


def specs(classes: int) -> tuple[ConvSpec | LinearSpec, ...]:
    """Layers of VGG-16 with `classes` outputs: zero padding, ReLU, max pools, dropout."""
    relu = Activation("relu")
    layers: list[ConvSpec | LinearSpec] = []
    for widths in BLOCKS:
        block = [
            ConvSpec(width, (3, 3), padding=(1, 1), bias=True, activation=relu) for width in widths
        ]
        layers += [*block[:-1], replace(block[-1], pool="max")]
    hidden = LinearSpec(NODES, activation=relu, dropout=DROPOUT)
    return (*layers, hidden, hidden, LinearSpec(classes))
