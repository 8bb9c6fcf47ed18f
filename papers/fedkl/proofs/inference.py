"""Computations of an attacker from weights and gradients alone, layer by layer (FedKL III-A)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradleak.attacks.closed_form.fully_connected import from_delta
from gradleak.models.chain import ConvLayer
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.system import LayerSystem

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Regression:
    """Input and target of a linear regression (eq. 3)."""

    input: np.ndarray  # x (n,)
    target: float  # y; NaN if the scale of x, and with it y, is undetermined


def regression(
    theta: np.ndarray,
    gradient: np.ndarray,
    *,
    bias: float = 0.0,
    bias_gradient: float | None = None,
    output: float | None = None,
) -> Regression:
    """Invert eq. (3) for one sample: ∂L/∂θ = c x with c = 2 (ŷ − y).

    `theta` and `gradient` are θ and ∂L/∂θ (n,); `bias` and `bias_gradient` are b and ∂L/∂b = c, if
    the model has one; `output` is ŷ = θ·x + b, if known: then θ·(∂L/∂θ) / c + b = ŷ gives c.
    Without `bias_gradient` and `output` the result is the gradient itself, which is x up to the
    factor c: each c gives an x and a y that fit.
    """
    factor = bias_gradient
    if factor is None:
        if output is None:
            return Regression(gradient, float("nan"))
        factor = float(theta @ gradient) / (output - bias)
    found = gradient / factor
    return Regression(found, float(theta @ found) + bias - factor / 2)


@dataclass(frozen=True)
class Head:
    """Quantities from the last layer's gradient (eq. 7, 8)."""

    label: int  # class with the smallest entry of ∂L/∂b
    negative: int  # number of negative entries of ∂L/∂b
    residual: np.ndarray  # ŷ − y (classes,), which is ∂L/∂b
    features: np.ndarray  # a' (n,), the layer's input
    back: np.ndarray  # ∂L/∂a' (n,), by the layer's weights

    @property
    def probabilities(self) -> np.ndarray:
        """ŷ (classes,)."""
        out = self.residual.copy()
        out[self.label] += 1.0
        return out


def head(weights: Arrays, gradients: Arrays, layer: str) -> Head:
    """Label, probabilities and input of the last layer, which has a bias."""
    residual = gradients[f"{layer}.bias"].astype(np.float64)
    label, negative = int(np.argmin(residual)), int((residual < 0).sum())
    features = from_delta(gradients[f"{layer}.weight"].astype(np.float64), residual)
    back = weights[f"{layer}.weight"].astype(np.float64).T @ residual
    return Head(label, negative, residual, features, back)


@dataclass(frozen=True)
class Input:
    """Input of a convolution as far as a linear system determines it."""

    x: np.ndarray | None  # (n,); None if unknowns are undetermined
    delta: np.ndarray  # ∂L/∂u (O, P)
    free: int  # number of unknowns minus the rank of the system


def through_convolution(layer: ConvLayer, weights: Arrays, gradients: Arrays, found: Head) -> Input:
    """Input of conv, activation and the last layer (eq. 18 to 23): W x = u − b and K x = ∂L/∂θ.

    W has the rows whose u the activation shows (where ReLU is active), K is that of
    `gradleak.operators.gradient`, made of ∂L/∂u = ∂L/∂a' ⊙ a'(u).
    """
    opened = layer.activation.open(found.features)
    delta = found.back * layer.activation.derivative(opened.z)
    shape = layer.shape
    convolution = Convolution(weights[f"{layer.name}.weight"], shape)
    constraint = GradientConstraint(delta.reshape(shape.filters, *shape.output), shape)
    bias = np.repeat(weights[f"{layer.name}.bias"].astype(np.float64), shape.positions)
    shown = (opened.z - bias)[slice(None) if opened.known is None else opened.known]
    gradient = gradients[f"{layer.name}.weight"].astype(np.float64).ravel()
    system, values = LayerSystem(convolution, constraint, opened.known).balance(
        np.concatenate([shown, gradient])
    )
    free = shape.unknowns - system.rank
    x = None if free else system.solve(values).x
    return Input(x, delta.reshape(shape.filters, -1), free)
