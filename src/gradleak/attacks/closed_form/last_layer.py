"""Start of the walk: input and dJ/dz of the last layer, from its gradient and the loss."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradleak.attacks.base import Arrays, AttackerView
from gradleak.attacks.closed_form.fully_connected import from_delta, last_layer
from gradleak.attacks.label_inference import (
    check_margin_labels,
    class_of,
    contradiction,
    is_positive,
    plausible_sign,
)
from gradleak.errors import NumericsError
from gradleak.models.activations import INSIDE
from gradleak.models.chain import Chain, LinearLayer
from gradleak.models.losses import BINARY, MarginLoss

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


def beginnings(view: AttackerView, weights: Arrays, gradients: Arrays) -> tuple[Beginning, ...]:
    """Return all inputs of the last layer that neither its gradient nor the layer before refutes.

    `weights` and `gradients` are those of `view` in the precision to compute in. Raises
    `NumericsError` if the loss does not fit the network, the gradient is zero, μ cannot be
    determined, or the granted label contradicts the gradient.
    """
    last = view.chain.layers[-1]
    assert isinstance(last, LinearLayer)
    weight, gradient = weights[f"{last.name}.weight"], gradients[f"{last.name}.weight"]
    bias_gradient = gradients.get(f"{last.name}.bias")
    if view.loss not in BINARY:
        label = class_of(view)
        solutions = last_layer(weight, gradient, bias_gradient, last.activation, label)
        found = [Beginning(s.x, s.delta, label) for s in solutions]
        kept = _unrefuted(found, view, weights, gradients)
    else:
        _check_margin(view, last)
        check_margin_labels(view)
        if bias_gradient is not None:
            bias = weights[f"{last.name}.bias"]
            return (_margin_with_bias(view, weight[0], bias[0], gradient[0], bias_gradient[0]),)
        kept = _margin_without_bias(view, weights, gradients)
    dtype = weight.dtype
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


def _margin_with_bias(
    view: AttackerView,
    weight: np.ndarray,
    bias: np.floating,
    gradient: np.ndarray,
    bias_gradient: np.floating,
) -> Beginning:
    """Solve db = y·ℓ'(μ) = k_d: ℓ' < 0 gives y, and, monotone, a single μ, without a twin."""
    delta = np.array([bias_gradient])
    x = from_delta(gradient[None], delta)
    label = -int(np.sign(bias_gradient))
    if view.batch == 1 and view.label not in (None, label):
        raise contradiction(-label)
    slope = label * MarginLoss(view.loss).derivative(label * (weight @ x + bias))
    off = abs(float(slope) / float(bias_gradient) - 1.0)
    note = f"μ and the bias gradient differ by {off:.1g}" if off > SMALL else ""
    return Beginning(x, delta, label, note if view.batch == 1 else "")


def _margin_without_bias(view: AttackerView, weights: Arrays, gradients: Arrays) -> list[Beginning]:
    """Solve ∇w·w = ∂ℓ/∂μ·μ: one or two μ (eq. 9), k_d = y·ℓ'(μ) and x = ∇w / k_d.

    Both y are tried where x may have either sign, to find the label or that the granted one is
    wrong. The layer before refutes one of them, unless the network is odd (Identity, Tanh, no
    bias): then −x and −y give the same gradient as x and y, both stay, and only the images can
    decide.
    """
    last = view.chain.layers[-1]
    weight = weights[f"{last.name}.weight"][0]
    gradient = gradients[f"{last.name}.weight"][0]
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
    found: list[Beginning], view: AttackerView, weights: Arrays, gradients: Arrays
) -> list[Beginning]:
    """Candidates that the layer before the last does not refute, in the same order."""
    if len(found) == 1 or len(view.chain.layers) == 1:
        return found
    misfits = disagreements(view.chain, weights, gradients, found)
    if misfits is None:
        return found
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
