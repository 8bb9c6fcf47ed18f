"""The walk from the last layer to the image that R-GAP and COPA share (COPA Algorithm 1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from gradleak.attacks.base import AttackerView, LayerFacts, Reconstruction
from gradleak.attacks.closed_form.fully_connected import (
    DECISIVE,
    SMALL,
    Beginning,
    beginnings,
    from_delta,
)
from gradleak.errors import NumericsError
from gradleak.models.activations import Activation, Opened
from gradleak.models.chain import ConvLayer, LinearLayer
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.structure import rank_bound
from gradleak.operators.system import LayerSystem, Solution


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
# Convolutions of one network by layer; images that share its weights share their factors.
ConvolutionCache = dict[str, Convolution]
# Why the attacker considers a reconstruction failed, empty if not.
Judge = Callable[[Reconstruction], str]

# Fraction of saturated values in an exact input above which the layer before cannot be inverted.
MOST_SATURATED = 0.5
# Root mean square distance outside the input range that errors may cause, as a fraction of it.
OUTSIDE = 0.05


def linear_facts(layer: str, equation: str, residual: float, solution: Solution) -> LayerFacts:
    """Diagnostics of a layer solved for U x = V by `LayerSystem.solve`."""
    stop, takes = solution.stop, solution.estimate
    if solution.given_up:
        stop = f"{stop} after '{solution.given_up}' did not converge"
    return LayerFacts(
        layer,
        equation,
        residual,
        solution.iterations,
        stop,
        path=takes.path,
        operations=takes.operations,
        step_operations=takes.step_operations,
        bytes=takes.bytes,
    )


class _Walk:
    """One network's weights and gradients in the precision of a walk, and its state."""

    def __init__(
        self, view: AttackerView, cache: ConvolutionCache, precision: str, margin: float
    ) -> None:
        self.chain, self.cache, self.margin = view.chain, cache, margin
        self.weights, self.gradients = (
            {name: value.astype(precision) for name, value in tensors.items()}
            for tensors in (view.weights, view.gradients)
        )
        self.facts: list[LayerFacts] = []

    def bias(self, layer: ConvLayer) -> np.ndarray | float:
        """Bias of `layer`, one value per output; 0 without one."""
        if not layer.bias:
            return 0.0
        return np.repeat(self.weights[f"{layer.name}.bias"], layer.shape.positions)

    def convolution(self, layer: ConvLayer) -> Convolution:
        """W of `layer`, built on first use and whenever the weight has changed."""
        known, weight = self.cache.get(layer.name), self.weights[f"{layer.name}.weight"]
        if known is None or known.conv_shape != layer.shape or (known.weight != weight).any():
            known = self.cache[layer.name] = Convolution(weight, layer.shape)
        return known

    def run(self, begin: Beginning, solve: SolveLayer) -> Reconstruction:
        """Walk to the image from one input of the last layer."""
        self.facts = facts = []
        x, back = self._linear_layers(begin)
        fc_input, z_known = x, None
        for before, layer in reversed(list(pairwise((None, *self.chain.convolutions)))):
            assert layer is not None
            opened = self._open(layer.activation, x) if z_known is None else Opened(z_known)
            delta = back * layer.activation.derivative(opened.z).astype(x.dtype)
            task = self._task(layer, before, opened, delta)
            answer = solve(task)
            facts.append(replace(answer.facts, free=task.free))
            if not np.all(np.isfinite(answer.x)):
                raise NumericsError(f"The solution of {layer.name} is not finite.")
            task.system.convolution.release()
            x, z_known = answer.x.astype(x.dtype), answer.z_before
            back = task.system.convolution.adjoint(delta).astype(x.dtype)
        notes = [facts[-1].stop, *([begin.note] if begin.note else [])]
        notes += [f"{one.layer}: {one.stop}" for one in facts[:-1] if one.clipped]
        notes += [f"{a.layer} leaves at least {a.free} unknowns free" for a in facts if a.free]
        images = x.reshape(1, *self.chain.input).astype(np.float64)
        known = begin.label, fc_input.astype(np.float64)
        return Reconstruction(images, "; ".join(notes), tuple(facts), *known)

    def _open(self, activation: Activation, x: np.ndarray) -> Opened:
        """Return A^-1(X); count saturated values in the facts of the layer with input X."""
        opened, of = activation.open(x, self.margin), self.facts[-1]
        if not opened.clipped:
            return opened
        note = f"{opened.clipped} of {x.size} values saturated"
        if of.layer.startswith("fc") and opened.clipped > MOST_SATURATED * x.size:
            raise NumericsError(
                f"The input of {of.layer}: {note}, at the ends of '{activation.name}' or beyond, "
                "where its inverse is infinite; use weights that saturate it less."
            )
        self.facts[-1] = replace(of, clipped=opened.clipped, stop=f"{of.stop}, {note}")
        return opened

    def _task(
        self, layer: ConvLayer, before: ConvLayer | None, opened: Opened, delta: np.ndarray
    ) -> LayerTask:
        shape = layer.shape
        constraint = GradientConstraint(delta.reshape(shape.filters, *shape.output), shape)
        z, shifted = opened.z, opened.z - self.bias(layer)
        if opened.known is not None:
            z, shifted = z[opened.known], shifted[opened.known]
        return LayerTask(
            layer=layer,
            system=LayerSystem(self.convolution(layer), constraint, opened.known),
            values=np.concatenate([shifted, self.gradients[f"{layer.name}.weight"].ravel()]),
            before=before,
            before_convolution=self.convolution(before) if before else None,
            before_bias=self.bias(before) if before else 0.0,
            z=z,
        )

    def _linear_layers(self, begin: Beginning) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of the fully connected layers (eq. 9, 10): X and dJ/dX of the first of them."""
        x, back = begin.x, np.empty(0)
        linear = [layer for layer in self.chain.layers if isinstance(layer, LinearLayer)]
        for layer in reversed(linear):
            gradient, delta = self.gradients[f"{layer.name}.weight"], begin.delta
            if layer is not linear[-1]:
                if layer.bias:
                    delta = self.gradients[f"{layer.name}.bias"]
                else:
                    opened = self._open(layer.activation, x)
                    delta = back * layer.activation.derivative(opened.z).astype(x.dtype)
                x = from_delta(gradient, delta)
            back = self.weights[f"{layer.name}.weight"].T @ delta
            error = np.linalg.norm(np.outer(delta, x) - gradient) / np.linalg.norm(gradient)
            equation = "9" if layer.bias else "10"
            self.facts.append(LayerFacts(layer.name, equation, float(error), 0, "closed form"))
        return x, back


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
    both are walked, and `choose` decides. A batch is treated as one image.

    Values beyond the ends of an activation's range are moved to `margin` from them, or refused if
    it is 0; values of a layer that COPA solves are not affected. If `solve` is `linear` in the
    values of a task, a network without biases whose activations are homogeneous gives the twin as
    a multiple of the first reconstruction (R-GAP appendix B), and one walk is enough. `judge` is
    the attack's own rule for failed reconstructions, based on the attacker's view alone.

    Raises `NumericsError` if a tensor is missing or a gradient is zero or not finite, the gradient
    contradicts the label, or an inverse activation overflows.
    """
    _check(view)
    one = _Walk(view, cache, precision, margin)
    shared = linear and view.chain.is_homogeneous
    found: list[Reconstruction] = []
    first: dict[int | None, tuple[Beginning, Reconstruction]] = {}
    for begin in beginnings(view, one.weights, one.gradients):
        if shared and begin.label in first:
            found.append(_multiple(*first[begin.label], begin))
            continue
        answer = one.run(begin, solve)
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


def choose(found: Sequence[Reconstruction], view: AttackerView) -> Reconstruction:
    """Return the most plausible reconstruction, with the others as its twins (R-GAP appendix B).

    The rule uses only the attacker's view, in this order:

    1. A reconstruction whose worst layer residual is more than `DECISIVE` times another's (and
       above rounding) is refuted and comes last, with that as its ``failure``; so does one that
       the attack itself considers failed.
    2. A reconstruction in the input range, to `OUTSIDE` of that range in the root mean square,
       comes before one outside it; of two outside, the nearer one first.
    3. Of two inside, the one with more contrast (standard deviation) comes first: the twin of an
       image that the network already fits is a faint copy of it. Both fit then, and ``stop`` says
       so.
    """
    if len(found) == 1:
        return found[0]
    worst = [max(layer.residual for layer in one.layers) for one in found]
    limit = max(DECISIVE * min(worst), SMALL)
    span = view.high - view.low
    ranked = []
    for one, residual in zip(found, worst, strict=True):
        refuted = residual > limit or bool(one.failure)
        beyond = one.images - np.clip(one.images, view.low, view.high)
        outside = float(np.sqrt(np.mean(np.square(beyond)))) / span
        inside = outside <= OUTSIDE
        order = (refuted, not inside, -float(one.images.std()) if inside else outside)
        better = f"A twin fits the layers better (residual {residual:.1g})." if refuted else ""
        ranked.append((order, replace(one, kind="twin", failure=one.failure or better)))
    ranked.sort(key=lambda pair: pair[0])
    fitting = sum(not refuted and not outside for (refuted, outside, _), _ in ranked)
    chosen = ranked[0][1]
    verdict = f"{fitting} answers fit" if fitting > 1 else "its twin is less plausible"
    others = tuple(one for _, one in ranked[1:])
    return replace(chosen, kind="answer", stop=f"{chosen.stop}; {verdict}", others=others)
