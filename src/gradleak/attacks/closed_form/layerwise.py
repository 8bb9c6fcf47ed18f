"""The walk from the last layer to the image that R-GAP and COPA share (COPA Algorithm 1)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gradleak.attacks.base import AttackerView, LayerFacts, Reconstruction
from gradleak.attacks.closed_form.fully_connected import from_delta
from gradleak.attacks.closed_form.last_layer import Beginning, beginnings
from gradleak.attacks.closed_form.twins import choose
from gradleak.errors import NumericsError
from gradleak.models.activations import INVERTIBLE, Activation, Opened
from gradleak.models.chain import Chain, ConvLayer, LinearLayer
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.structure import rank_bound
from gradleak.operators.system import LayerSystem


@dataclass(frozen=True)
class LayerTask:
    """One convolutional layer to solve for its input."""

    layer: ConvLayer
    system: LayerSystem  # U = [W; K], without the rows of W whose output a ReLU hides
    values: np.ndarray  # V = [A^-1(X of the next layer) − bias; dJ/dW]
    before: ConvLayer | None  # the layer before it, None for the first
    before_convolution: Convolution | None  # W of that layer
    before_bias: np.ndarray | float  # its bias, one value per output; 0 without one
    z: np.ndarray  # A^-1(X of the next layer), for the rows of W in `system`

    @property
    def free(self) -> int:
        """Lower bound on unknowns that U does not fix: by sizes, rows left, zeros of dJ/dZ."""
        shape = self.layer.shape
        known = min(rank_bound(shape, self.system.gradient.seen), self.system.shape[0])
        return max(0, shape.unknowns - known)


@dataclass(frozen=True)
class LayerAnswer:
    """Solution of one layer, with diagnostics."""

    x: np.ndarray  # input X (n,)
    z_before: np.ndarray | None  # linear output of the layer before; None for A^-1(X)
    facts: LayerFacts


SolveLayer = Callable[[LayerTask], LayerAnswer]
# Why the attacker considers a reconstruction failed, empty if not.
Judge = Callable[[Reconstruction], str]

# Fraction of saturated values in an exact input above which the layer before cannot be inverted.
MOST_SATURATED = 0.5


def inapplicable(chain: Chain, hidden: tuple[str, ...] = INVERTIBLE) -> str | None:
    """Return why a walk that inverts activations `hidden` cannot run on `chain`, or None."""
    for layer in chain.layers:
        name = f"{chain.name}: {layer.name}"
        if isinstance(layer, ConvLayer) and layer.skip:
            return (
                f"{name} has a skip connection, which the closed form does not walk; use dlg or "
                "inverting_gradients."
            )
        if isinstance(layer, ConvLayer) and not layer.is_plain:
            return (
                f"{name} has a pool, a norm or replicated padding, which the closed form does not "
                "walk; use dlg, inverting_gradients or mkor."
            )
        allowed = INVERTIBLE if layer is chain.layers[-1] else hidden
        if layer.activation.name not in allowed:
            return (
                f"{name} is followed by '{layer.activation.name}', which has no inverse; choose "
                f"one of {', '.join(allowed)}."
            )
    return None


class ConvolutionCache:
    """Convolutions of one network; images that share its weights share their factors."""

    def __init__(self) -> None:
        self._known: dict[str, Convolution] = {}

    def get(self, layer: ConvLayer, weight: np.ndarray) -> Convolution:
        """Return W of `layer`, built on first use and whenever the weight has changed."""
        known = self._known.get(layer.name)
        if known is None or known.conv_shape != layer.shape or (known.weight != weight).any():
            known = self._known[layer.name] = Convolution(weight, layer.shape)
        return known


@dataclass(frozen=True)
class Given:
    """Weights and gradients by parameter, in the precision of a walk."""

    layers: tuple[ConvLayer | LinearLayer, ...]
    weights: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    cache: ConvolutionCache
    margin: float

    def bias(self, layer: ConvLayer) -> np.ndarray | float:
        """Bias of `layer`, one value per output; 0 without one."""
        if not layer.bias:
            return 0.0
        return np.repeat(self.weights[f"{layer.name}.bias"], layer.shape.positions)

    def convolution(self, layer: ConvLayer) -> Convolution:
        """W of `layer`."""
        return self.cache.get(layer, self.weights[f"{layer.name}.weight"])


def walk(
    view: AttackerView,
    cache: ConvolutionCache,
    solve: SolveLayer,
    *,
    precision: str = "float64",
    margin: float = 0.0,
    linear: bool = False,
    judge: Judge | None = None,
) -> Reconstruction:
    """Reconstruct one image, last layer first, in `precision` (``float64`` or ``float32``).

    For each layer: Z = A^-1(X of the next layer) (eq. 2), dJ/dZ = dJ/dX of the next layer ⊙ A'(Z)
    (eq. 3a), X from `solve`, dJ/dX = W^T dJ/dZ (eq. 3b). Where the last layer allows two inputs,
    both are walked, and `gradleak.attacks.closed_form.twins.choose` decides. A batch is treated as
    one image.

    Values beyond the ends of an activation's range are moved to `margin` from them, or refused if
    it is 0; values of a layer that COPA solves are not affected. If `solve` is `linear` in the
    values of a task, a network without biases whose activations are homogeneous gives the twin as
    a multiple of the first reconstruction (R-GAP appendix B), and one walk is enough. `judge` is
    the attack's own rule for failed reconstructions, based on the attacker's view alone.

    Raises `NumericsError` if a tensor is missing or a gradient is zero or not finite, the gradient
    contradicts the label, or an inverse activation overflows.
    """
    _check(view)
    weights, gradients = (
        {name: value.astype(precision) for name, value in tensors.items()}
        for tensors in (view.weights, view.gradients)
    )
    given = Given(view.chain.layers, weights, gradients, cache, margin)
    shared = linear and view.chain.is_homogeneous
    found: list[Reconstruction] = []
    first: dict[int | None, tuple[Beginning, Reconstruction]] = {}
    for begin in beginnings(view, given.weights, given.gradients):
        if shared and begin.label in first:
            found.append(_multiple(*first[begin.label], begin))
            continue
        answer = _walk_from(begin, given, view.chain, solve)
        if judge is not None:
            answer = replace(answer, failure=judge(answer))
        found.append(answer)
        first[begin.label] = begin, answer
    return choose(found, view)


def _check(view: AttackerView) -> None:
    """Raise for a missing tensor or a gradient that the walk cannot use, naming the first."""
    parameters = [
        f"{layer.name}.{kind}"
        for layer in view.chain.layers
        for kind in ("weight", "bias")[: 1 + layer.bias]
    ]
    for what, tensors in (("set of weights", view.weights), ("gradient", view.gradients)):
        missing = [name for name in parameters if name not in tensors]
        if missing:
            raise NumericsError(
                f"The {what} of {view.chain.name} lacks {missing[0]}, and the walk needs every "
                "layer's; give it a file with all parameters."
            )
    for name in parameters:
        if not np.all(np.isfinite(view.weights[name])):
            raise NumericsError(
                f"The weight {name} of {view.chain.name} holds NaN or infinity; use other weights."
            )
    if not all(np.all(np.isfinite(view.gradients[name])) for name in parameters):
        raise NumericsError("The shared gradient holds NaN or infinity; the client must resend it.")
    for name in parameters:
        if not np.any(view.gradients[name]):
            raise NumericsError(
                f"The gradient of {name} is zero everywhere, so it tells nothing of the input of "
                f"{name.split('.')[0]}; use a gradient of other weights, or dlg."
            )


def _multiple(base: Beginning, first: Reconstruction, begin: Beginning) -> Reconstruction:
    """Reconstruction that starts from c·x and dJ/dz / c, c > 0, if `first` started from `base`."""
    factor = float(np.linalg.norm(base.delta) / np.linalg.norm(begin.delta))
    fc_input = None if first.fc_input is None else factor * first.fc_input
    return replace(first, images=factor * first.images, fc_input=fc_input)


def _walk_from(begin: Beginning, given: Given, chain: Chain, solve: SolveLayer) -> Reconstruction:
    facts: list[LayerFacts] = []
    x, back = _linear_layers(given, begin, facts)
    fc_input = x
    z_known: np.ndarray | None = None
    for index, layer in reversed(list(enumerate(chain.convolutions))):
        opened = (
            Opened(z_known) if z_known is not None else _open(layer.activation, x, facts, given)
        )
        delta = back * layer.activation.derivative(opened.z).astype(x.dtype)
        before = chain.convolutions[index - 1] if index else None
        task = _task(layer, before, given, opened, delta)
        answer = solve(task)
        facts.append(replace(answer.facts, free=task.free))
        if not np.all(np.isfinite(answer.x)):
            raise NumericsError(f"The solution of {layer.name} is not finite.")
        x, z_known = answer.x.astype(x.dtype), answer.z_before
        back = task.system.convolution.adjoint(delta).astype(x.dtype)
    notes = [begin.note] if begin.note else []
    notes += [f"{one.layer}: {one.stop}" for one in facts[:-1] if one.clipped]
    notes += [f"{one.layer} leaves at least {one.free} unknowns free" for one in facts if one.free]
    stop = "; ".join([facts[-1].stop, *notes])
    images = x.reshape(1, *chain.input).astype(np.float64)
    return Reconstruction(images, stop, tuple(facts), begin.label, fc_input.astype(np.float64))


def _open(activation: Activation, x: np.ndarray, facts: list[LayerFacts], given: Given) -> Opened:
    """Return A^-1(X); count saturated values in the facts of the layer with input X."""
    opened, of = activation.open(x, given.margin), facts[-1]
    if not opened.clipped:
        return opened
    note = f"{opened.clipped} of {x.size} values saturated"
    if of.layer.startswith("fc") and opened.clipped > MOST_SATURATED * x.size:
        raise NumericsError(
            f"The input of {of.layer}: {note}, at the ends of '{activation.name}' or beyond, where "
            "its inverse is infinite; use weights that saturate it less."
        )
    facts[-1] = replace(of, clipped=opened.clipped, stop=f"{of.stop}, {note}")
    return opened


def _task(
    layer: ConvLayer, before: ConvLayer | None, given: Given, opened: Opened, delta: np.ndarray
) -> LayerTask:
    shape = layer.shape
    constraint = GradientConstraint(delta.reshape(shape.filters, *shape.output), shape)
    system = LayerSystem(given.convolution(layer), constraint, opened.known)
    z, shifted = opened.z, opened.z - given.bias(layer)
    if opened.known is not None:
        z, shifted = z[opened.known], shifted[opened.known]
    return LayerTask(
        layer=layer,
        system=system,
        values=np.concatenate([shifted, given.gradients[f"{layer.name}.weight"].ravel()]),
        before=before,
        before_convolution=given.convolution(before) if before else None,
        before_bias=given.bias(before) if before else 0.0,
        z=z,
    )


def _linear_layers(
    given: Given, begin: Beginning, facts: list[LayerFacts]
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of the fully connected layers (eq. 9, 10): X and dJ/dX of the first of them."""
    x, back = begin.x, np.empty(0)
    linear = [layer for layer in given.layers if isinstance(layer, LinearLayer)]
    for layer in reversed(linear):
        gradient, delta = given.gradients[f"{layer.name}.weight"], begin.delta
        if layer is not linear[-1]:
            if layer.bias:
                delta = given.gradients[f"{layer.name}.bias"]
            else:
                opened = _open(layer.activation, x, facts, given)
                delta = back * layer.activation.derivative(opened.z).astype(x.dtype)
            x = from_delta(gradient, delta)
        back = given.weights[f"{layer.name}.weight"].T @ delta
        error = np.linalg.norm(np.outer(delta, x) - gradient) / np.linalg.norm(gradient)
        equation = "9" if layer.bias else "10"
        facts.append(LayerFacts(layer.name, equation, float(error), 0, "closed form"))
    return x, back
