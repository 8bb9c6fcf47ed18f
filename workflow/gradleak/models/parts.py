"""The convolutions of a layer: its own, and the one that its skip passes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from gradleak.models.locks import Lock
from gradleak.operators.shape import ConvShape

# What the projection of a skip is called, behind the name of the layer where it ends.
SKIP = "_skip"
PaddingMode = Literal["zeros", "replicate"]


@dataclass(frozen=True)
class ConvPart:
    """One convolution and the norm behind it.

    Attributes
    ----------
    name
        What its parameters are called: as the layer, or with `SKIP` behind.
    back
        It takes what entered the layer `back` − 1 places before; 1 for its own layer's input.
    shape, bias, gain, padding_mode
        As of `gradleak.models.chain.ConvLayer`.
    normed
        Whether a norm follows.
    lock
        What makes that norm's scale and shift; None if they are parameters.
    """

    name: str
    back: int
    shape: ConvShape
    bias: bool = False
    gain: float = 1.0
    padding_mode: PaddingMode = "zeros"
    normed: bool = False
    lock: Lock | None = None

    @property
    def norm(self) -> str:
        """Name of the norm."""
        return f"{self.name}_norm"

    @property
    def parameters(self) -> int:
        """Weights and biases, with those of the norm or of the lock in their place."""
        shape = self.shape
        own = shape.filters * (shape.channels * prod(shape.kernel) + self.bias)
        if self.lock is not None:
            return own + self.lock.parameters(shape.filters)
        return own + 2 * shape.filters * self.normed
