"""The walk from the last layer to the image that R-GAP and COPA share (COPA Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradleak.attacks.base import AttackerView, LayerFacts, Reconstruction
from gradleak.attacks.fully_connected import from_delta, last_layer
from gradleak.attacks.labels import recover_label
from gradleak.errors import NumericsError
from gradleak.models.activations import INVERTIBLE
from gradleak.models.chain import Chain, ConvLayer, LinearLayer
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.system import LayerSystem


@dataclass(frozen=True)
class LayerTask:
    """One convolutional layer to solve for its input.

    Attributes
    ----------
    index
        Position of the layer in the chain, 0 for the first.
    layer
        Its sizes and activation.
    system
        U = [W; K].
    values
        V = [A^-1(X of the next layer) − bias; dJ/dW].
    before
        The layer in front of it, None for the first.
    before_convolution
        W of the layer in front of it.
    before_bias
        Bias of the layer in front of it, one value an output, 0 without one.
    """

    index: int
    layer: ConvLayer
    system: LayerSystem
    values: np.ndarray
    before: ConvLayer | None
    before_convolution: Convolution | None
    before_bias: np.ndarray | float


@dataclass(frozen=True)
class LayerAnswer:
    """Input X (n,) of a layer, the linear output Z of the layer before it, and how it went."""

    x: np.ndarray
    z_before: np.ndarray | None
    facts: LayerFacts


SolveLayer = Callable[[LayerTask], LayerAnswer]


def pull_through(task: LayerTask, x: np.ndarray, margin: float) -> tuple[np.ndarray | None, int]:
    """Z of the layer before, A^-1(x), and how many values had to be moved into A's range.

    A minimum-norm estimate may leave the range of a Tanh or Sigmoid; such values are moved to
    `margin` from its end, where the inverse is finite.
    """
    if task.before is None:
        return None, 0
    low, high = task.before.activation.limits
    clipped = int(np.sum((x < low + margin) | (x > high - margin)))
    return task.before.activation.inverse(x, margin), clipped


def inapplicable(chain: Chain) -> str | None:
    """Reason why a layer-wise attack cannot be run on `chain`, or None."""
    for layer in chain.layers:
        if layer.activation.name not in INVERTIBLE:
            return (
                f"{chain.name}: {layer.name} is followed by '{layer.activation.name}', which has "
                f"no inverse; choose one of {', '.join(INVERTIBLE)}."
            )
    return None


class ConvolutionCache:
    """Convolutions of one network, so that images that share its weights share the factors."""

    def __init__(self) -> None:
        self._known: dict[str, Convolution] = {}

    def get(self, layer: ConvLayer, weight: np.ndarray) -> Convolution:
        """W of `layer`, built on first use and whenever the weight has changed."""
        known = self._known.get(layer.name)
        if known is None or known.conv_shape != layer.shape or (known.weight != weight).any():
            known = self._known[layer.name] = Convolution(weight, layer.shape)
        return known


def walk(view: AttackerView, cache: ConvolutionCache, solve: SolveLayer) -> Reconstruction:
    """Reconstruct one image, last layer first.

    For each layer: Z = A^-1(X of the next layer) (eq. 2), dJ/dZ = dJ/dX of the next layer ⊙ A'(Z)
    (eq. 3a), X from `solve`, dJ/dX = W^T dJ/dZ (eq. 3b).

    Raises
    ------
    NumericsError
        If the gradient is zero or not finite, or an inverse activation overflows.
    """
    layers = view.chain.layers
    weights = {k: v.astype(np.float64) for k, v in view.weights.items()}
    gradients = {k: v.astype(np.float64) for k, v in view.gradients.items()}
    if not all(np.all(np.isfinite(g)) for g in gradients.values()):
        raise NumericsError("The shared gradient holds NaN or infinity; the client must resend it.")
    label = recover_label(view) if view.label is None else view.label
    facts: list[LayerFacts] = []
    x, back = _linear_layers(layers, weights, gradients, label, facts)
    fc_input = x
    z_known: np.ndarray | None = None
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        if not isinstance(layer, ConvLayer):
            continue
        z = layer.activation.inverse(x) if z_known is None else z_known
        delta = back * layer.activation.derivative(z)
        weight = weights[f"{layer.name}.weight"]
        convolution = cache.get(layer, weight)
        bias = _bias(layer, weights)
        before = layers[index - 1] if index else None
        assert before is None or isinstance(before, ConvLayer)
        task = LayerTask(
            index=index,
            layer=layer,
            system=LayerSystem(
                convolution,
                GradientConstraint(
                    delta.reshape(layer.shape.filters, *layer.shape.output), layer.shape
                ),
            ),
            values=np.concatenate([z - bias, gradients[f"{layer.name}.weight"].ravel()]),
            before=before,
            before_convolution=(
                cache.get(before, weights[f"{before.name}.weight"]) if before else None
            ),
            before_bias=_bias(before, weights) if before else 0.0,
        )
        answer = solve(task)
        facts.append(answer.facts)
        if not np.all(np.isfinite(answer.x)):
            raise NumericsError(f"The solution of {layer.name} is not finite.")
        x, z_known = answer.x, answer.z_before
        back = convolution.adjoint(delta)
    image = x.reshape(view.chain.input)
    return Reconstruction(image, facts[-1].stop, tuple(facts), label, fc_input)


def _bias(layer: ConvLayer, weights: dict[str, np.ndarray]) -> np.ndarray | float:
    if not layer.bias:
        return 0.0
    return np.repeat(weights[f"{layer.name}.bias"], layer.shape.positions)


def _linear_layers(
    layers: tuple[ConvLayer | LinearLayer, ...],
    weights: dict[str, np.ndarray],
    gradients: dict[str, np.ndarray],
    label: int,
    facts: list[LayerFacts],
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of the fully connected layers (eq. 9, 10): X and dJ/dX of the first of them."""
    x: np.ndarray | None = None
    back = np.empty(0)
    for layer in reversed([a for a in layers if isinstance(a, LinearLayer)]):
        weight = weights[f"{layer.name}.weight"]
        gradient = gradients[f"{layer.name}.weight"]
        bias_gradient = gradients.get(f"{layer.name}.bias")
        candidates = 1
        if x is None:
            answer = last_layer(weight, gradient, bias_gradient, layer.activation, label)
            x, delta, candidates = answer.x, answer.delta, answer.candidates
        else:
            z = layer.activation.inverse(x)
            delta = back * layer.activation.derivative(z)
            if bias_gradient is not None:
                delta = bias_gradient
            x = from_delta(gradient, delta)
        back = weight.T @ delta
        error = np.linalg.norm(np.outer(delta, x) - gradient) / np.linalg.norm(gradient)
        stop = "closed form" if candidates == 1 else f"closed form, {candidates} answers fit"
        facts.append(LayerFacts(layer.name, "9" if layer.bias else "10", float(error), 0, stop))
    assert x is not None
    return x, back
