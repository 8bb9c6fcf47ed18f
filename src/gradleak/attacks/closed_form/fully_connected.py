"""Closed form for a fully connected layer (COPA Lemma A.1, eq. 9 to 13)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from gradleak.errors import NumericsError
from gradleak.models.activations import Activation

SCALE_GRID = np.geomspace(1e-4, 1e4, 801)
FINER = 41
# Relative misfit of dJ/dW; gradients in float32 reach about 1e-6.
ROOT_TOLERANCE = 1e-4
# Noise and batches change the first singular triplet of dJ/dW by about the second's size.
NOISE_FACTOR = 3.0


@dataclass(frozen=True)
class LinearSolution:
    """Input of a fully connected layer."""

    x: np.ndarray  # input (n,)
    delta: np.ndarray  # dJ/dz (m,)


def from_delta(weight_gradient: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Input (n,) from dJ/dW (m, n) = delta x^T by least squares: x = dJ/dW^T delta / |delta|².

    Eq. (9) and (12) take one row k, x = dJ/dw_k / delta_k. With exact gradients every row gives the
    same input; with rounded ones the largest rows count most. Raises `NumericsError` if delta (m,)
    is zero or not finite.
    """
    scale = np.abs(delta).max(initial=0.0)
    if not scale > 0 or not np.isfinite(scale):
        raise NumericsError(
            "dJ/dz of a fully connected layer is zero or not finite, so eq. (9) and (10) divide "
            "by zero; the gradient carries nothing about the image."
        )
    unit = delta / scale
    return (weight_gradient.T @ unit) / (scale * (unit @ unit))


def _loss_gradient(z: np.ndarray, activation: Activation, label: int) -> np.ndarray:
    """Return dJ/dz (m, ...) of cross-entropy after `activation`: (softmax(a(z)) − y)·a'(z)."""
    value = activation.forward(z)
    exponent = np.exp(value - value.max(axis=0))
    probability = exponent / exponent.sum(axis=0)
    probability[label] -= 1.0
    return probability * activation.derivative(z)


def last_layer(
    weight: np.ndarray,
    weight_gradient: np.ndarray,
    bias_gradient: np.ndarray | None,
    activation: Activation,
    label: int | None,
) -> tuple[LinearSolution, ...]:
    """Inputs of the last layer under cross-entropy that explain its gradient, best first.

    They do so within `ROOT_TOLERANCE`, or within its distance from rank one where that is larger
    (noise, batches). With a bias, dJ/dz = dJ/db (eq. 13) and the input is unique. Without one,
    dJ/dz depends on the unknown probabilities: dJ/dW = delta x^T fixes x up to a scale t, x = t·u,
    and eq. (10) becomes m equations in t alone, t·dJ/dz(t·W u) = v. Three or more classes almost
    always leave one t. With two classes the m equations coincide, and t has a twin.

    `weight` and its gradient are (m, n), `bias_gradient` is (m,) or None, and `label`, the true
    class, is needed only without a bias. `activation` stands before the softmax. Raises
    `NumericsError` if the gradient is zero, or no scale explains it.
    """
    if bias_gradient is not None:
        return (LinearSolution(from_delta(weight_gradient, bias_gradient), bias_gradient),)
    if label is None:
        raise NumericsError(
            "Without a bias the last layer's closed form needs the label; grant it "
            "(label: granted)."
        )
    return _without_bias(weight, weight_gradient, activation, label)


def _without_bias(
    weight: np.ndarray, weight_gradient: np.ndarray, activation: Activation, label: int
) -> tuple[LinearSolution, ...]:
    """Find every scale t of x = t·u for which dJ/dz(t·W u) fits the gradient."""
    left, values, right = np.linalg.svd(weight_gradient.astype(np.float64), full_matrices=False)
    if not values[0] > 0:
        raise NumericsError("The last layer's gradient is zero; nothing can be reconstructed.")
    # delta_y < 0 for the true class fixes the sign that the SVD leaves open.
    sign = -np.sign(left[label, 0]) or 1.0
    direction, target = sign * right[0], sign * left[:, 0]
    logits = weight.astype(np.float64) @ direction

    def mismatch(scale: np.ndarray) -> np.ndarray:
        """Return the misfit (m, scales), relative to the gradient."""
        found = _loss_gradient(np.outer(logits, scale), activation, label)
        return scale * found / values[0] - target[:, None]

    scales = _minima(mismatch)
    errors = np.linalg.norm(mismatch(scales), axis=0)
    second = values[1] / values[0] if values.size > 1 else 0.0
    limit = max(ROOT_TOLERANCE, NOISE_FACTOR * float(second))
    order = np.argsort(errors)
    fitting = order[errors[order] <= limit]
    if not fitting.size:
        raise NumericsError(
            f"The best input of the last layer explains its gradient only to {errors.min():.1g} "
            "(eq. 10 without bias); check the label and the activation."
        )
    return tuple(
        LinearSolution(scale * direction, _loss_gradient(scale * logits, activation, label))
        for scale in scales[fitting]
    )


def _minima(mismatch: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Find the scales at which ||mismatch|| has a local minimum, ascending.

    They are bracketed on `SCALE_GRID` and again on a grid `FINER` times as fine, so that only
    minima within about 1e-3 of each other, equal for any purpose, are merged. Gauss-Newton then
    refines each root to rounding.
    """
    found: list[float] = []
    for first, last in _valleys(mismatch, SCALE_GRID):
        for low, high in _valleys(mismatch, np.geomspace(first, last, 2 * FINER)):
            fit = least_squares(
                lambda log: mismatch(np.exp(log))[:, 0],
                [0.5 * (np.log(low) + np.log(high))],
                bounds=([np.log(low)], [np.log(high)]),
                xtol=1e-15,
                ftol=1e-15,
                gtol=1e-15,
            )
            found.append(float(np.exp(fit.x[0])))
    return np.unique(found)


def _valleys(
    mismatch: Callable[[np.ndarray], np.ndarray], grid: np.ndarray
) -> list[tuple[float, float]]:
    sizes = np.linalg.norm(mismatch(grid), axis=0)
    padded = np.concatenate([[np.inf], sizes, [np.inf]])
    lowest = (padded[1:-1] < padded[:-2]) & (padded[1:-1] <= padded[2:])
    ends = np.concatenate([grid[:1], grid, grid[-1:]])
    return [(float(ends[i]), float(ends[i + 2])) for i in np.flatnonzero(lowest)]
