"""Activations with derivative and inverse, for attacks that walk a network backwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradleak.errors import NotApplicable, NumericsError

NAMES = ("identity", "tanh", "sigmoid", "leaky_relu", "relu")
INVERTIBLE = ("identity", "tanh", "sigmoid", "leaky_relu")
# Activations with a(c·z) = c·a(z) for c > 0.
HOMOGENEOUS = ("identity", "leaky_relu", "relu")
# Activations whose slope jumps at 0.
KINKED = ("leaky_relu", "relu")
# How far inside an activation's range a value beyond it is taken, unless told otherwise.
INSIDE = 1e-6
# A value of ReLU that is above this multiple of the error its negative values show, and above
# this many roundings of the largest value, may be true; one above this share of it is.
ZERO_ERRORS, ZERO_ROUNDINGS, TRUE_SHARE = 2.0, 8.0, 1e-2


@dataclass(frozen=True)
class Opened:
    """What the values behind an activation tell of those before it.

    Attributes
    ----------
    z
        A^-1(x), and 0 where ReLU hides it.
    known
        Where z is known; None if everywhere.
    clipped
        Values that were moved into the activation's range first.
    """

    z: np.ndarray
    known: np.ndarray | None = None
    clipped: int = 0


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
    def is_kinked(self) -> bool:
        """Whether a'(z) jumps at 0."""
        return self.name in KINKED

    @property
    def is_homogeneous(self) -> bool:
        """Whether a(c·z) = c·a(z) for all c > 0."""
        return self.name in HOMOGENEOUS

    @property
    def is_sloped(self) -> bool:
        """Whether a'(z) is 0 nowhere."""
        return self.name in INVERTIBLE and (self.name != "leaky_relu" or self.slope != 0)

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

    def open(self, x: np.ndarray, margin: float = 0.0) -> Opened:
        """What x = a(z), with its errors, tells of z; for ReLU too, where only z > 0 is known.

        Parameters
        ----------
        x
            Values of the activation.
        margin
            See `inverse`.

        Notes
        -----
        Where ReLU gave 0, a'(z) = 0 and z is unknown, which removes a weight constraint (R-GAP
        section 3.1.2); `_zero_level` says what counts as 0.

        Raises
        ------
        NumericsError
            See `inverse`.
        """
        if self.name == "relu":
            known = x > _zero_level(x)
            return Opened(np.where(known, x, np.zeros_like(x)), known)
        low, high = self.limits
        clipped = int(np.sum((x < low + margin) | (x > high - margin))) if margin else 0
        return Opened(self.inverse(x, margin), None, clipped)


def _zero_level(x: np.ndarray) -> float:
    """Value up to which a computed output of ReLU counts as zero.

    ReLU gives no negative values, so the most negative one measures the error of x. Between
    `ZERO_ERRORS` times that (or a few roundings) and `TRUE_SHARE` of the largest value, zeros with
    larger errors meet small true values; the level lies in the widest gap, by ratio.
    """
    largest = float(np.abs(x).max(initial=0.0))
    error = ZERO_ERRORS * float(np.maximum(-x, 0.0).max(initial=0.0))
    low = max(error, ZERO_ROUNDINGS * float(np.finfo(x.dtype).eps) * largest)
    high = TRUE_SHARE * largest
    if low >= high:
        return high
    edges = np.concatenate([[low], np.sort(x[(x > low) & (x < high)]), [high]])
    widest = int(np.argmax(edges[1:] / edges[:-1]))
    return float(np.sqrt(edges[widest] * edges[widest + 1]))
