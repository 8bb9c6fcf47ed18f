"""Losses of one output, and the margin μ that a gradient reveals (R-GAP section 3.1.1)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradleak.errors import NumericsError

BINARY = ("logistic", "exponential", "hinge")
RAW = "raw_logits"  # −output[label], without softmax: NLLLoss of raw outputs, as in MKOR's code
OF_CLASSES = ("cross_entropy", RAW)  # losses of one output a class
LOSSES = (*OF_CLASSES, *BINARY)
EPSILON = float(np.finfo(float).eps)
ROUNDING = 1e-5  # tolerance below the minimum of ∂ℓ/∂μ·μ, as gradients in float32 are rounded


@dataclass(frozen=True)
class MarginLoss:
    """ℓ(μ) of the margin μ = y·f(x), y ∈ {−1, 1} (R-GAP eq. 4, 5 and Figure 1)."""

    name: str  # ``logistic`` log(1 + e^−μ), ``exponential`` e^−μ or ``hinge`` max(0, 1 − μ)

    def value(self, mu: np.ndarray) -> np.ndarray:
        """ℓ(μ), same shape as `mu`."""
        if self.name == "logistic":
            return np.logaddexp(0.0, -mu)
        if self.name == "exponential":
            return np.exp(-mu)
        return np.maximum(0.0, 1.0 - mu)

    def derivative(self, mu: np.ndarray | float) -> np.ndarray:
        """∂ℓ/∂μ; −1/(1 + e^μ) for the logistic loss, where eq. (35) prints a superfluous μ."""
        mu = np.asarray(mu, dtype=np.float64)
        if self.name == "logistic":
            from scipy.special import expit  # slow to import

            return -expit(-mu)
        if self.name == "exponential":
            return -np.exp(-mu)
        return np.where(mu < 1.0, -1.0, 0.0)

    def product(self, mu: np.ndarray | float) -> np.ndarray:
        """∂ℓ/∂μ · μ, which the gradient of a bias-free last layer reveals (eq. 9 and 11)."""
        return self.derivative(mu) * mu

    @property
    def turn(self) -> float:
        """Minimiser μ of ∂ℓ/∂μ·μ, which falls before and rises after, so μ has a twin.

        For the logistic loss the root of 1 + e^−μ = μ (1.278), else 1; the hinge loss jumps there.
        """
        if self.name == "logistic":
            return _root(lambda mu: 1.0 + np.exp(-mu) - mu, 1.0, 2.0, 1e-15, 4.0 * EPSILON)
        return 1.0

    def margins(self, product: float) -> tuple[float, ...]:
        """Every μ with ∂ℓ/∂μ·μ = `product`, smallest first.

        One root if `product` > 0 (μ < 0, a misclassified sample), two if it is negative: the data
        and their twin (R-GAP appendix B). Raises `NumericsError` if no μ gives `product`, or it is
        0: then the gradient is zero or μ = 0, by which nothing can be divided.
        """
        if not np.isfinite(product) or product == 0:
            raise NumericsError(
                f"The last layer gives ∂ℓ/∂μ·μ = {product:g}, so μ cannot be told; a zero gradient "
                "carries nothing about the image."
            )
        least = float(self.product(np.nextafter(self.turn, 0.0)))
        if product < least * (1.0 + ROUNDING):
            raise NumericsError(
                f"The last layer gives ∂ℓ/∂μ·μ = {product:g}, below the least value {least:g} of "
                f"the {self.name} loss; the label contradicts the gradient, or the gradient was "
                "changed on its way."
            )
        if product <= least:
            return (self.turn,)

        def along(mu: float) -> float:
            return float(self.product(mu)) - product

        def far(mu: float) -> float:
            while along(mu) < 0:
                mu *= 2.0
            return mu

        if product > 0:
            return (_root(along, far(-1.0), 0.0),)
        first = _root(along, 0.0, np.nextafter(self.turn, 0.0))
        if self.name == "hinge":
            return (first,)
        return first, _root(along, self.turn, far(2.0 * self.turn))


def _root(
    function: Callable[[float], float],
    low: float,
    high: float,
    xtol: float = 1e-300,
    rtol: float = 1e-15,
) -> float:
    from scipy.optimize import brentq  # takes a third of a second in every job

    return float(brentq(function, low, high, xtol=xtol, rtol=rtol))


def output_gradient(loss: str, output: np.ndarray, label: int) -> np.ndarray:
    """dℓ/d(output) (m,) of one sample.

    `loss` is one of `LOSSES`; `output` (m,) leaves the last activation, m = 1 for margin losses;
    `label` is the class, or −1 or 1 for margin losses.
    """
    if loss == "cross_entropy":
        exponent = np.exp(output - output.max())
        probability = exponent / exponent.sum()
        probability[label] -= 1.0
        return probability
    if loss == RAW:
        return -np.eye(len(output))[label]
    return label * MarginLoss(loss).derivative(label * output)
