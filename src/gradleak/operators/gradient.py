"""The gradient constraint: sum over positions of delta · x = dJ/dW (COPA eq. 1b)."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gradleak.errors import NumericsError
from gradleak.operators.base import Operator
from gradleak.operators.shape import ConvShape, Seen, patch_indices


class GradientConstraint(Operator):
    """K in K x = vec(dJ/dW): x (C·H·W,) -> (O·C·kh·kw,), in the order of the weight.

    (K x)[o, c, k] = sum over p of delta[o, p] · x[c, s·p + k − padding], with `delta` (O, Ph, Pw)
    the gradient dJ/dZ in the layer's linear output. A row (o, c, k) touches input channel c only,
    so K = I_C ⊗ K₀ up to the order of rows, with K₀ of O·kh·kw rows and one column per pixel;
    K^T K is C copies of K₀^T K₀.
    """

    def __init__(self, delta: np.ndarray, shape: ConvShape) -> None:
        expected = (shape.filters, *shape.output)
        if delta.shape != expected:
            raise NumericsError(f"A delta of shape {delta.shape} does not fit {expected}.")
        if not np.all(np.isfinite(delta)):
            raise NumericsError("dJ/dZ holds NaN or infinity, so this layer cannot be solved.")
        self.delta = delta.astype(np.float64).reshape(shape.filters, -1)
        self.conv_shape = shape
        kernel = shape.kernel[0] * shape.kernel[1]
        self.shape = (shape.filters * shape.channels * kernel, shape.unknowns)

    @property
    def seen(self) -> Seen:
        """True on each axis where dJ/dZ has a nonzero entry on the line at a position."""
        grid = np.asarray(self.delta.any(axis=0)).reshape(self.conv_shape.output)
        return np.asarray(grid.any(axis=1)), np.asarray(grid.any(axis=0))

    @cached_property
    def block(self) -> np.ndarray:
        """K₀ (O, kh·kw, H·W), the part that acts on one channel."""
        shape = self.conv_shape
        indices, valid = patch_indices(shape)
        out = np.zeros((shape.filters, indices.shape[0], shape.size[0] * shape.size[1]))
        for k in range(indices.shape[0]):
            seen = valid[k]
            out[:, k, indices[k, seen]] = self.delta[:, seen]
        return out

    def scaled(self, factors: np.ndarray) -> GradientConstraint:
        """Multiply the rows of each filter o by `factors` (O,)."""
        shape = self.conv_shape
        delta = self.delta * factors[:, None]
        return GradientConstraint(delta.reshape(shape.filters, *shape.output), shape)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return K x."""
        shape = self.conv_shape
        pixels = shape.size[0] * shape.size[1]
        rows = self.block.reshape(-1, pixels)
        values = rows @ x.reshape(shape.channels, pixels).T  # (O·k, C)
        return values.reshape(shape.filters, -1, shape.channels).transpose(0, 2, 1).ravel()

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Return K^T y."""
        shape = self.conv_shape
        rows = self.block.reshape(-1, shape.size[0] * shape.size[1])
        values = y.reshape(shape.filters, shape.channels, -1).transpose(1, 0, 2)
        return (values.reshape(shape.channels, -1) @ rows).ravel()

    def dense(self) -> np.ndarray:
        """Return K as a dense matrix (O·C·kh·kw, C·H·W)."""
        shape = self.conv_shape
        pixels = shape.size[0] * shape.size[1]
        kernel = self.block.shape[1]
        out = np.zeros((shape.filters, shape.channels, kernel, shape.channels, pixels))
        for c in range(shape.channels):
            out[:, c, :, c] = self.block
        return out.reshape(self.shape)
