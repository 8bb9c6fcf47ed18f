"""Closed forms of fully connected layers; start of the walk (COPA Lemma A.1, eq. 9 to 13)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from gradleak.attacks.base import Arrays, AttackerView
from gradleak.attacks.label_inference import (
    check_margin_labels,
    class_of,
    contradiction,
    is_positive,
    plausible_sign,
)
from gradleak.errors import NumericsError
from gradleak.models.activations import INSIDE, Activation
from gradleak.models.chain import Chain, LinearLayer
from gradleak.models.losses import BINARY, MarginLoss

Mismatch = Callable[[np.ndarray], np.ndarray]
SCALE_GRID = np.geomspace(1e-4, 1e4, 801)
FINER = 41
TIGHT = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
# Relative misfit of dJ/dW; gradients in float32 reach about 1e-6.
ROOT_TOLERANCE = 1e-4
# Noise and batches change the first singular triplet of dJ/dW by about the second's size.
NOISE_FACTOR = 3.0
# An input is refuted by a misfit this many times another's, unless it is as small as rounding
# makes it.
DECISIVE, SMALL = 10.0, 1e-3


@dataclass(frozen=True)
class Beginning:
    """One input of the last layer that explains its gradient."""

    x: np.ndarray  # (n,)
    delta: np.ndarray  # dJ/dz (m,)
    label: int | None  # matching label, None where none was needed
    note: str = ""  # message for the attacker, empty if there is none


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
) -> tuple[Beginning, ...]:
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
        return (Beginning(from_delta(weight_gradient, bias_gradient), bias_gradient, label),)
    if label is None:
        raise NumericsError(
            "Without a bias the last layer's closed form needs the label; grant it "
            "(label: granted)."
        )
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
        Beginning(scale * direction, _loss_gradient(scale * logits, activation, label), label)
        for scale in scales[fitting]
    )


def _minima(mismatch: Mismatch) -> np.ndarray:
    """Scales at local minima of ||mismatch||, ascending; within about 1e-3 they are merged.

    Bracketed on `SCALE_GRID` and on a grid `FINER` times as fine; Gauss-Newton refines each.
    """
    found: list[float] = []
    for first, last in _valleys(mismatch, SCALE_GRID):
        for low, high in _valleys(mismatch, np.geomspace(first, last, 2 * FINER)):
            start, end = np.log(low), np.log(high)
            fit = least_squares(
                lambda log: mismatch(np.exp(log))[:, 0],
                [0.5 * (start + end)],
                bounds=([start], [end]),
                **TIGHT,
            )
            found.append(float(np.exp(fit.x[0])))
    return np.unique(found)


def _valleys(mismatch: Mismatch, grid: np.ndarray) -> list[tuple[float, float]]:
    sizes = np.linalg.norm(mismatch(grid), axis=0)
    padded = np.concatenate([[np.inf], sizes, [np.inf]])
    lowest = (padded[1:-1] < padded[:-2]) & (padded[1:-1] <= padded[2:])
    ends = np.concatenate([grid[:1], grid, grid[-1:]])
    return [(float(ends[i]), float(ends[i + 2])) for i in np.flatnonzero(lowest)]


def beginnings(view: AttackerView, weights: Arrays, gradients: Arrays) -> tuple[Beginning, ...]:
    """Return all inputs of the last layer that neither its gradient nor the layer before refutes.

    `weights` and `gradients` are those of `view` in the precision to compute in. Raises
    `NumericsError` if the loss does not fit the network, the gradient is zero, μ cannot be
    determined, or the granted label contradicts the gradient.
    """
    last = view.chain.layers[-1]
    assert isinstance(last, LinearLayer)
    weight, gradient = weights[f"{last.name}.weight"], gradients[f"{last.name}.weight"]
    bias_gradient, dtype = gradients.get(f"{last.name}.bias"), weight.dtype
    if view.loss not in BINARY:
        found = last_layer(weight, gradient, bias_gradient, last.activation, class_of(view))
        kept = _unrefuted(found, view, weights, gradients)
    else:
        _check_margin(view, last)
        if bias_gradient is None:
            kept = _margin_without_bias(view, weights, gradients)
        else:
            kept = [_margin_with_bias(view, weights, gradients)]
    return tuple(replace(s, x=s.x.astype(dtype), delta=s.delta.astype(dtype)) for s in kept)


def _check_margin(view: AttackerView, last: LinearLayer) -> None:
    if last.outputs != 1:
        raise NumericsError(
            f"The {view.loss} loss needs one output, but {last.name} has {last.outputs}; use loss: "
            "cross_entropy."
        )
    if last.activation.name != "identity":
        raise NumericsError(
            f"The {view.loss} loss takes the margin from {last.name} directly, but it is followed "
            f"by '{last.activation.name}'; use activation: identity there."
        )
    check_margin_labels(view)


def _margin_with_bias(view: AttackerView, weights: Arrays, gradients: Arrays) -> Beginning:
    """Solve db = y·ℓ'(μ) = k_d: ℓ' < 0 gives y, and, monotone, a single μ, without a twin."""
    name = view.chain.layers[-1].name
    delta = gradients[f"{name}.bias"]
    x, label = from_delta(gradients[f"{name}.weight"], delta), -int(np.sign(delta[0]))
    if view.batch == 1 and view.label not in (None, label):
        raise contradiction(-label)
    output = weights[f"{name}.weight"][0] @ x + weights[f"{name}.bias"][0]
    slope = label * MarginLoss(view.loss).derivative(label * output)
    off = abs(float(slope) / float(delta[0]) - 1.0)
    note = f"μ and the bias gradient differ by {off:.1g}" if off > SMALL else ""
    return Beginning(x, delta, label, note if view.batch == 1 else "")


def _margin_without_bias(view: AttackerView, weights: Arrays, gradients: Arrays) -> list[Beginning]:
    """Solve ∇w·w = ∂ℓ/∂μ·μ: one or two μ (eq. 9), k_d = y·ℓ'(μ) and x = ∇w / k_d.

    Both y are tried where x may have either sign, to find the label or that the granted one is
    wrong. The layer before refutes one of them, unless the network is odd (Identity, Tanh, no
    bias): then −x and −y give the same gradient as x and y, both stay, and only the images can
    decide.
    """
    name = f"{view.chain.layers[-1].name}.weight"
    weight, gradient = weights[name][0], gradients[name][0]
    loss = MarginLoss(view.loss)
    slopes = [float(loss.derivative(np.array(mu))) for mu in loss.margins(float(gradient @ weight))]
    if not all(slopes):
        raise NumericsError(
            "One of the two μ that the last layer's gradient allows is so large that the slope of "
            f"the {view.loss} loss there is 0 in float64; the gradient is too small to use."
        )
    sign = plausible_sign(view, gradient)
    trusted = view.label if view.batch > 1 else None
    labels = [trusted] if trusted else [sign] if sign and is_positive(view) else [1, -1]
    every = [
        Beginning(gradient / (y * slope), np.array([y * slope]), y)
        for y in labels
        for slope in slopes
    ]
    found = _unrefuted(every, view, weights, gradients)
    left = {one.label for one in found}
    if view.label is not None and view.label not in left:
        raise contradiction(view.label)
    # The granted label, else the likely one; all if nothing determines it.
    label = view.label if view.label is not None else sign
    return [one for one in found if one.label == label] if label in left else found


def _unrefuted(
    found: Sequence[Beginning], view: AttackerView, weights: Arrays, gradients: Arrays
) -> list[Beginning]:
    """Candidates that the layer before the last does not refute, in the same order."""
    several = len(found) > 1 and len(view.chain.layers) > 1
    misfits = disagreements(view.chain, weights, gradients, found) if several else None
    if misfits is None:
        return list(found)
    limit = max(DECISIVE * min(misfits), SMALL)
    return [one for one, misfit in zip(found, misfits, strict=True) if misfit <= limit]


def disagreements(
    chain: Chain, weights: Arrays, gradients: Arrays, found: Sequence[Beginning]
) -> list[float] | None:
    """Return by how much the layer before the last contradicts each candidate, without solving it.

    In every layer, fully connected or convolution, Z = W x and ∇W = δ x^T summed over positions,
    so W ∇W^T = Z δ^T (O, O), whatever x is. The left side is known; Z = A^-1(X) − bias and
    δ = dJ/dX ⊙ A'(Z) follow from a candidate. The contradiction is ||W ∇W^T − Z δ^T|| / ||W ∇W^T||;
    None where ReLU hides Z.
    """
    layer, last = chain.layers[-2], chain.layers[-1]
    if layer.activation.name == "relu":
        return None
    weight, gradient = weights[f"{layer.name}.weight"], gradients[f"{layer.name}.weight"]
    filters = weight.shape[0]
    expected = weight.reshape(filters, -1) @ gradient.reshape(filters, -1).T
    scale = max(float(np.linalg.norm(expected)), np.finfo(float).tiny)
    bias = weights[f"{layer.name}.bias"][:, None] if layer.bias else 0.0
    out = []
    for begin in found:
        z = layer.activation.open(begin.x, INSIDE).z
        back = weights[f"{last.name}.weight"].T @ begin.delta
        delta = (back * layer.activation.derivative(z)).reshape(filters, -1)
        product = (z.reshape(filters, -1) - bias) @ delta.T
        out.append(float(np.linalg.norm(product - expected)) / scale)
    return out
