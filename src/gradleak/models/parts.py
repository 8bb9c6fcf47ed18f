"""The convolutions of a layer: its own, and its skip's projection."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from gradleak.models.locks import Lock
from gradleak.operators.shape import ConvShape

# Suffix of the name of a skip's projection, after that of the layer where it ends.
SKIP = "_skip"
PaddingMode = Literal["zeros", "replicate"]


@dataclass(frozen=True)
class ConvPart:
    """One convolution and the batch norm behind it."""

    name: str  # of its parameters: the layer's, or with `SKIP` appended
    back: int  # its input is that of the layer `back` − 1 places before; 1 for its own layer's
    shape: ConvShape  # as of `gradleak.models.chain.ConvLayer`
    bias: bool = False
    gain: float = 1.0
    padding_mode: PaddingMode = "zeros"
    normed: bool = False  # true if a batch norm follows
    lock: Lock | None = None  # source of its scale and shift; None if they are parameters

    @property
    def norm(self) -> str:
        """Name of the batch norm."""
        return f"{self.name}_norm"

    @property
    def parameters(self) -> int:
        """Number of weights and biases, including those of the batch norm or of its lock."""
        shape = self.shape
        own = shape.filters * (shape.channels * prod(shape.kernel) + self.bias)
        if self.lock is not None:
            return own + self.lock.parameters(shape.filters)
        return own + 2 * shape.filters * self.normed
