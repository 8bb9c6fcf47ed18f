"""Activations with derivative and inverse, for attacks that walk a network backwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradleak.errors import NotApplicable, NumericsError

NAMES = ("identity", "tanh", "sigmoid", "leaky_relu", "relu")
INVERTIBLE = ("identity", "tanh", "sigmoid", "leaky_relu")


@dataclass(frozen=True)
class Activation:
    """One element-wise activation a(z).

    Parameters
    ----------
    name
        One of `NAMES`.
    slope
        Slope of leaky_relu for z < 0; ignored by the others.
    """

    name: str
    slope: float = 0.01

    def forward(self, z: np.ndarray) -> np.ndarray:
        """a(z), same shape as z."""
        if self.name == "tanh":
            return np.tanh(z)
        if self.name == "sigmoid":
            return 0.5 * (1.0 + np.tanh(0.5 * z))
        if self.name == "leaky_relu":
            return np.where(z >= 0, z, self.slope * z)
        if self.name == "relu":
            return np.maximum(z, 0.0)
        return z.copy()

    def derivative(self, z: np.ndarray) -> np.ndarray:
        """a'(z), same shape as z; at 0 the derivative from the left, as PyTorch takes it."""
        if self.name == "tanh":
            return 1.0 - np.tanh(z) ** 2
        if self.name == "sigmoid":
            value = self.forward(z)
            return value * (1.0 - value)
        if self.name == "leaky_relu":
            return np.where(z > 0, 1.0, self.slope)
        if self.name == "relu":
            return (z > 0).astype(np.float64)
        return np.ones_like(z)

    @property
    def limits(self) -> tuple[float, float]:
        """Open interval of values that a(z) takes for finite z."""
        return {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0)}.get(self.name, (-np.inf, np.inf))

    def inverse(self, x: np.ndarray, margin: float = 0.0) -> np.ndarray:
        """Z with a(z) = x (COPA eq. 2).

        Parameters
        ----------
        x
            Values of the activation.
        margin
            Values nearer than this to the ends of the range, or beyond them, are moved there
            first. An estimate from a rank-deficient layer may lie outside of the range.

        Raises
        ------
        NotApplicable
            If the activation has no inverse.
        NumericsError
            If a value lies at or beyond the end of the range and `margin` is 0.
        """
        if self.name not in INVERTIBLE:
            raise NotApplicable(
                f"Activation '{self.name}' has no inverse; choose one of {', '.join(INVERTIBLE)}."
            )
        low, high = self.limits
        if margin > 0:
            x = np.clip(x, low + margin, high - margin)
        outside = int(np.sum(~((x > low) & (x < high))))
        if outside:
            raise NumericsError(
                f"{outside} of {x.size} values lie at or beyond the ends ({low:g}, {high:g}) of "
                f"'{self.name}', where its inverse is infinite; use float64 gradients or weights "
                "that saturate it less."
            )
        if self.name == "tanh":
            return np.arctanh(x)
        if self.name == "sigmoid":
            return np.log(x) - np.log1p(-x)
        if self.name == "leaky_relu":
            return np.where(x >= 0, x, x / self.slope)
        return x.copy()
