"""Activations with derivative and inverse, for attacks that walk a network backwards."""

from dataclasses import dataclass

import numpy as np

from gradleak.errors import NotApplicable, NumericsError

NAMES = ("identity", "tanh", "sigmoid", "leaky_relu", "relu")
INVERTIBLE = ("identity", "tanh", "sigmoid", "leaky_relu")
INSIDE = 1e-6  # default distance inside an activation's range to which values beyond it are moved
# A ReLU value above this multiple of the error that its negative values show, and of this many
# roundings of the largest value, may be true; one above this fraction of the largest is.
ZERO_ERRORS, ZERO_ROUNDINGS, TRUE_SHARE = 2.0, 8.0, 1e-2


@dataclass(frozen=True)
class Opened:
    """Information on z from x = a(z)."""

    z: np.ndarray  # A^-1(x), and 0 where ReLU hides it
    known: np.ndarray | None = None  # where z is known; None if everywhere
    clipped: int = 0  # values that were moved into the activation's range first


@dataclass(frozen=True)
class Activation:
    """One element-wise activation a(z), with `name` one of `NAMES`.

    `slope` is that of leaky_relu for z < 0; ignored by the others.
    """

    name: str
    slope: float = 0.01

    def forward(self, z: np.ndarray) -> np.ndarray:
        """Return a(z), same shape as z."""
        if self.name == "tanh":
            return np.tanh(z)
        if self.name == "sigmoid":
            return 0.5 * (1.0 + np.tanh(0.5 * z))
        if self.name == "leaky_relu":
            return np.where(z >= 0, z, self.slope * z)
        return np.maximum(z, 0.0) if self.name == "relu" else z.copy()

    def derivative(self, z: np.ndarray) -> np.ndarray:
        """Return a'(z), same shape as z; at 0 the derivative from the left, as in PyTorch."""
        if self.name == "tanh":
            return 1.0 - np.tanh(z) ** 2
        if self.name == "sigmoid":
            value = self.forward(z)
            return value * (1.0 - value)
        if self.name == "leaky_relu":
            return np.where(z > 0, 1.0, self.slope)
        return (z > 0).astype(np.float64) if self.name == "relu" else np.ones_like(z)

    @property
    def is_kinked(self) -> bool:
        """True if a'(z) jumps at 0."""
        return self.name in ("leaky_relu", "relu")

    @property
    def is_homogeneous(self) -> bool:
        """True if a(c·z) = c·a(z) for all c > 0."""
        return self.name in ("identity", "leaky_relu", "relu")

    @property
    def is_sloped(self) -> bool:
        """True if a'(z) is never 0."""
        return self.name in INVERTIBLE and (self.name != "leaky_relu" or self.slope != 0)

    @property
    def limits(self) -> tuple[float, float]:
        """Open interval of the values of a(z) for finite z."""
        return {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0)}.get(self.name, (-np.inf, np.inf))

    def inverse(self, x: np.ndarray, margin: float = 0.0) -> np.ndarray:
        """Return z with a(z) = x (COPA eq. 2).

        Values nearer than `margin` to the ends of the range, or beyond them, are moved there first:
        an estimate from a rank-deficient layer may lie outside the range. Raises `NotApplicable` if
        the activation has no inverse, and `NumericsError` if a value lies at or beyond the end of
        the range and `margin` is 0.
        """
        if self.name not in INVERTIBLE:
            raise NotApplicable(
                f"Activation '{self.name}' has no inverse; choose one of {', '.join(INVERTIBLE)}."
            )
        low, high = self.limits
        if margin > 0:
            x = np.clip(x, low + margin, high - margin)
        if outside := int(np.sum(~((x > low) & (x < high)))):
            raise NumericsError(
                f"{outside} of {x.size} values lie at or beyond the ends ({low:g}, {high:g}) of "
                f"'{self.name}', where its inverse is infinite; use float64 gradients or weights "
                "that saturate it less."
            )
        if self.name == "tanh":
            return np.arctanh(x)
        if self.name == "sigmoid":
            return np.log(x) - np.log1p(-x)
        return np.where(x >= 0, x, x / self.slope) if self.name == "leaky_relu" else x.copy()

    def open(self, x: np.ndarray, margin: float = 0.0) -> Opened:
        """Return what x = a(z) with errors says about z; for ReLU only z > 0 is known.

        Where ReLU gave 0 (see `_zero_level`), z is unknown, which removes a weight constraint
        (R-GAP section 3.1.2). For `margin` and errors see `inverse`.
        """
        if self.name == "relu":
            known = x > _zero_level(x)
            return Opened(np.where(known, x, np.zeros_like(x)), known)
        low, high = self.limits
        clipped = int(np.sum((x < low + margin) | (x > high - margin))) if margin else 0
        return Opened(self.inverse(x, margin), None, clipped)


def _zero_level(x: np.ndarray) -> float:
    """Value up to which a computed output of ReLU counts as zero."""
    # ReLU gives no negative values, so the most negative one measures the error of x. Between
    # `ZERO_ERRORS` times that (or a few roundings) and `TRUE_SHARE` of the largest value, zeros
    # with larger errors meet small true values; the level lies in the widest gap, by ratio.
    largest = float(np.abs(x).max(initial=0.0))
    error = ZERO_ERRORS * float(np.maximum(-x, 0.0).max(initial=0.0))
    low = max(error, ZERO_ROUNDINGS * float(np.finfo(x.dtype).eps) * largest)
    high = TRUE_SHARE * largest
    if low >= high:
        return high
    edges = np.concatenate([[low], np.sort(x[(x > low) & (x < high)]), [high]])
    widest = int(np.argmax(edges[1:] / edges[:-1]))
    return float(np.sqrt(edges[widest] * edges[widest + 1]))
