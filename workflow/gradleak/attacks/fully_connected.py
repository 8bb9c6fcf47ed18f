"""Closed form for a fully connected layer (COPA Lemma A.1, eq. 9 to 13)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from gradleak.errors import NumericsError
from gradleak.models.activations import Activation

SCALE_GRID = np.geomspace(1e-4, 1e4, 801)
# Relative misfit of dJ/dW; gradients in float32 reach about 1e-6.
ROOT_TOLERANCE = 1e-4


@dataclass(frozen=True)
class LinearSolution:
    """Input of a fully connected layer.

    Attributes
    ----------
    x
        Input (n,).
    delta
        dJ/dz (m,).
    candidates
        How many inputs explain the gradient; more than one means the answer is not unique.
    """

    x: np.ndarray
    delta: np.ndarray
    candidates: int = 1


def from_delta(weight_gradient: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Input from dJ/dW = delta x^T, by least squares over all rows: x = dJ/dW^T delta / |delta|².

    Eq. (9) and (12) take one row k, x = dJ/dw_k / delta_k; with exact gradients every row gives
    the same, with rounded ones the largest rows count most.

    Parameters
    ----------
    weight_gradient
        (m, n).
    delta
        (m,).

    Raises
    ------
    NumericsError
        If delta is zero or so small that its square underflows.
    """
    weight_gradient = weight_gradient.astype(np.float64)
    delta = delta.astype(np.float64)
    scale = np.abs(delta).max(initial=0.0)
    if not scale > 0 or not np.isfinite(scale):
        raise NumericsError(
            "dJ/dz of a fully connected layer is zero or not finite, so eq. (9) and (10) divide "
            "by zero; the gradient carries nothing about the image."
        )
    unit = delta / scale
    return (weight_gradient.T @ unit) / (scale * (unit @ unit))


def _loss_gradient(z: np.ndarray, activation: Activation, label: int) -> np.ndarray:
    """dJ/dz (m, ...) of cross-entropy after `activation`: (softmax(a(z)) − y)·a'(z)."""
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
    label: int,
) -> LinearSolution:
    """Input of the last layer from its gradient.

    With a bias, dJ/dz = dJ/db (eq. 13). Without one, dJ/dz depends on the logits, which are
    unknown: dJ/dW = delta x^T fixes x up to a scale t, x = t·u, and eq. (10) becomes one
    equation in t, t·dJ/dz(t·W u) = v, solved by bracketing on a logarithmic grid.

    Parameters
    ----------
    weight, weight_gradient
        (m, n).
    bias_gradient
        (m,), or None for a layer without bias.
    activation
        Activation after the layer, before the softmax.
    label
        True class.

    Returns
    -------
    LinearSolution
        The input that explains the gradient best; `candidates` counts all that explain it
        within `ROOT_TOLERANCE`. Roots are found by their change of sign between neighbours of
        `SCALE_GRID`, so two roots between neighbours are missed.

    Raises
    ------
    NumericsError
        If the gradient is zero, or no scale explains it within `ROOT_TOLERANCE`.
    """
    if bias_gradient is not None:
        delta = bias_gradient.astype(np.float64)
        return LinearSolution(from_delta(weight_gradient, delta), delta)
    return _without_bias(weight, weight_gradient, activation, label)


def _without_bias(
    weight: np.ndarray, weight_gradient: np.ndarray, activation: Activation, label: int
) -> LinearSolution:
    """Search the scale t of x = t·u for which dJ/dz(t·W u) fits the gradient."""
    left, values, right = np.linalg.svd(weight_gradient.astype(np.float64), full_matrices=False)
    if not values[0] > 0:
        raise NumericsError("The last layer's gradient is zero; nothing can be reconstructed.")
    # delta_y < 0 for the true class: this fixes the sign that the SVD leaves open.
    sign = -np.sign(left[label, 0]) or 1.0
    direction, target = sign * right[0], sign * values[0] * left[:, 0]
    logits = weight.astype(np.float64) @ direction

    def mismatch(scale: np.ndarray) -> np.ndarray:
        return scale * _loss_gradient(np.outer(logits, scale), activation, label) - target[:, None]

    def along(scale: float) -> float:
        return float(mismatch(np.array([scale]))[label, 0])

    grid = mismatch(SCALE_GRID)[label]
    starts = np.flatnonzero(np.sign(grid[:-1]) != np.sign(grid[1:]))
    roots = np.array([brentq(along, SCALE_GRID[i], SCALE_GRID[i + 1], xtol=1e-15) for i in starts])
    if not roots.size:
        raise NumericsError(
            "No input of the last layer explains its gradient (eq. 10 without bias has no root); "
            "check the label and the activation."
        )
    errors = np.linalg.norm(mismatch(roots), axis=0) / np.linalg.norm(target)
    if errors.min() > ROOT_TOLERANCE:
        raise NumericsError(
            f"The best input of the last layer explains its gradient only to {errors.min():.1g} "
            "(eq. 10 without bias); check the label and the activation."
        )
    scale = float(roots[np.argmin(errors)])
    delta = _loss_gradient(scale * logits, activation, label)
    return LinearSolution(scale * direction, delta, int(np.sum(errors <= ROOT_TOLERANCE)))
