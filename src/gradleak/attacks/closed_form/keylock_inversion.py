"""A closed form that opens a key-lock: its scale and shift are moments of the tail's input.

FedKL's Proposition 2 states that without γ and β the input cannot be inferred. But the layers
behind the lock share their gradients, and R-GAP's walk solves them for the features a(s),
s = γ û + β. As û has mean 0 and variance 1 in each channel, β is the mean of s and γ its deviation,
whatever key made them. A deviation has no sign, so the lock's activation must not make γ negative.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from gradleak.attacks.base import Arrays, Attack, AttackerView, LayerFacts, Reconstruction
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.errors import NumericsError
from gradleak.models.activations import INSIDE, INVERTIBLE
from gradleak.models.chain import Chain, ConvLayer
from gradleak.models.locks import is_private

FIRST = "conv1"
# Relative size below which a direction counts as free: rounding of float32 gradients makes 1e-7.
CONDITION = 1e-7
# Relative deviation below which a channel counts as constant: features have errors of that size.
CONSTANT = 1e-4
# Activations of a lock without negative γ.
POSITIVE = ("relu", "sigmoid")


class Unlock(Attack):
    """R-GAP behind the lock, moments in it, and one homogeneous system before it.

    With û known, the first convolution leaves W x − σ û − μ 1 = 0 and, as
    ∂ℓ/∂u = v / σ with v = γ ∘ g − <γ ∘ g> − û <γ ∘ g ∘ û>, g = ∂ℓ/∂s, means <·> over positions,
    K_v x − σ ∂ℓ/∂W = 0: linear in the image x and each channel's deviation σ and mean μ (the bias
    included), with one scale left free, since a batch norm removes brightness. The image is scaled
    to fill the input range. Pixels that no window sees together with padding, those of one phase of
    a stride or all where there is no padding, can be shifted together. The facts count these, and
    the smallest solution is taken, without padding about the middle of the range.

    The key and the lock's weights and gradient are not used.
    """

    # A reconstruction fails if the equations of a layer contradict each other by more (relative).
    failure_residual: ClassVar[float] = 0.25

    method: Literal["unlock"] = "unlock"

    @cached_property
    def _tail(self) -> RGap:
        return RGap(rows="balanced")

    def applies(self, chain: Chain) -> str | None:
        """See `gradleak.attacks.base.Attack`."""
        if [layer.name for layer in chain.locked] != [FIRST]:
            return f"{chain.name} has no lock on its first convolution alone; use another attack."
        first = chain.convolutions[0]
        if first.skip or first.pool != "none" or first.padding_mode != "zeros":
            return f"{chain.name}: {FIRST} has a skip, a pool or replicated padding; use dlg."
        if first.activation.name not in INVERTIBLE:
            return (
                f"{chain.name}: {FIRST} is followed by '{first.activation.name}', which hides what "
                "the moments need; use dlg with lock: fit."
            )
        assert first.lock is not None
        if first.lock.activation.name not in POSITIVE:
            return (
                f"{chain.name}: its lock's activation '{first.lock.activation.name}' may make γ "
                "negative, whose sign the moments do not tell; lock with relu or sigmoid."
            )
        if chain.layers[1:] and isinstance(chain.layers[1], ConvLayer):
            return self._tail.applies(tail_of(chain))
        return f"{chain.name} has no convolution behind its lock; use dlg."

    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """See `gradleak.attacks.base.Attack`; deterministic, `seed` is ignored."""
        if view.batch > 1 or view.mode != "training":
            raise NumericsError(
                "The moments of a lock are those of one image under norms in training mode; set "
                "batch: 1 and mode: training."
            )
        behind = self._tail.run(_behind(view), seed)
        features, label = behind.images[0], behind.label
        if label is None:
            raise NumericsError("The label is neither granted nor told by the gradient; grant it.")
        first = view.chain.convolutions[0]
        opened = first.activation.open(features.ravel(), INSIDE).z
        s = np.asarray(opened, np.float64).reshape(first.shape.filters, -1)
        beta, gamma = s.mean(1, keepdims=True), s.std(1, keepdims=True)
        # A γ of 0, as from ReLU in the lock, makes a channel constant and uninformative.
        alive = np.flatnonzero(gamma > CONSTANT * gamma.max())
        normed = (s - beta)[alive] / gamma[alive]
        back = (gamma * _back(view, features, label, s))[alive]
        pulled = back - back.mean(1, keepdims=True)
        pulled -= normed * (back * normed).mean(1, keepdims=True)
        image, residual, free = self._image(view, normed, pulled, alive)
        facts = LayerFacts(FIRST, "homogeneous", residual, 0, "direct", free=free)
        layers = tuple(replace(one, layer=_renamed(one.layer)) for one in behind.layers)
        layers = (*layers, facts)
        more = f"; {FIRST} leaves {free} unknowns free" if free else ""
        stop = f"closed form; brightness is free{more}"
        worst, failure = max(layers, key=lambda one: one.residual), ""
        if worst.residual > self.failure_residual:
            failure = (
                f"The equations of {worst.layer} contradict each other (relative residual "
                f"{worst.residual:.2g}, where more than {self.failure_residual:g} counts as "
                "failed); use dlg with lock: fit."
            )
        return Reconstruction(image[None], stop, layers, label, failure=failure)

    def _image(
        self, view: AttackerView, normed: np.ndarray, pulled: np.ndarray, alive: np.ndarray
    ) -> tuple[np.ndarray, float, int]:
        """Return the image (C, H, W), the equations' relative misfit, and the free unknowns."""
        from scipy import linalg

        from gradleak.operators.convolution import Convolution
        from gradleak.operators.gradient import GradientConstraint

        shape = replace(view.chain.convolutions[0].shape, filters=len(alive))
        weight = view.weights[f"{FIRST}.weight"].astype(np.float64)[alive]
        gradient = view.gradients[f"{FIRST}.weight"].astype(np.float64)[alive]
        gradient = gradient.reshape(shape.filters, -1)
        constraint = GradientConstraint(pulled.reshape(shape.filters, *shape.output), shape)
        top, low = Convolution(weight, shape).dense(), constraint.dense()
        # As in R-GAP's balanced rows, all equations count alike.
        share = np.linalg.norm(top) / np.sqrt(len(top)) / (np.linalg.norm(low) / np.sqrt(len(low)))
        filters, places = np.arange(shape.filters), np.arange(shape.filters * shape.positions)
        matrix = np.zeros((len(top) + len(low) + 1, shape.unknowns + 2 * shape.filters))
        matrix[: len(top), : shape.unknowns] = top
        matrix[places, shape.unknowns + np.repeat(filters, shape.positions)] = -normed.ravel()
        matrix[places, shape.unknowns + np.repeat(filters + shape.filters, shape.positions)] = -1.0
        matrix[len(top) : -1, : shape.unknowns] = share * low
        rows = len(top) + np.arange(gradient.size)
        matrix[rows, shape.unknowns + np.repeat(filters, gradient.shape[1])] = (
            -share * gradient.ravel()
        )
        # The free scale: σ is 1 on average.
        matrix[-1, shape.unknowns : shape.unknowns + shape.filters] = 1.0
        right = np.zeros(len(matrix))
        right[-1] = shape.filters
        found, _, rank, _ = linalg.lstsq(
            matrix, right, cond=CONDITION, lapack_driver="gelsy", check_finite=False
        )
        off = np.linalg.norm((matrix @ found - right)[:-1])
        size = np.linalg.norm(matrix[:-1, : shape.unknowns] @ found[: shape.unknowns])
        image = found[: shape.unknowns].reshape(view.chain.input)
        image = _filled(image, view, centre=not any(shape.padding))
        return image, float(off / size), matrix.shape[1] - int(rank)


def tail_of(chain: Chain) -> Chain:
    """Return the network behind the first convolution, fed with that layer's output."""
    first = chain.convolutions[0]
    specs = chain.specs[1:]
    return Chain(f"{chain.name}, behind its lock", (first.shape.filters, *first.grid), specs)


def _renamed(layer: str, by: int = 1) -> str:
    """Map a layer's name in the tail to the whole network; `by` −1 for the inverse."""
    return f"conv{int(layer.removeprefix('conv')) + by}" if layer.startswith("conv") else layer


def _behind(view: AttackerView) -> AttackerView:
    """The attacker's view of the tail."""
    tail = tail_of(view.chain)
    # The tail's input range is that of the activation; wide where it has no ends.
    ends = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0)}
    low, high = ends.get(view.chain.convolutions[0].activation.name, (-np.inf, np.inf))

    def of_tail(arrays: Arrays) -> dict[str, np.ndarray]:
        out = {}
        for name, value in arrays.items():
            layer, _, part = name.partition(".")
            if not is_private(name) and layer != FIRST and "_norm" not in layer:
                out[f"{_renamed(layer, -1)}.{part}"] = value
        return out

    weights, gradients = of_tail(view.weights), of_tail(view.gradients)
    own: dict[str, Any] = {"chain": tail, "weights": weights, "gradients": gradients}
    return replace(view, **own, low=low, high=high, keys={}, starts=None)


def _back(view: AttackerView, features: np.ndarray, label: int, s: np.ndarray) -> np.ndarray:
    """Return ∂ℓ/∂s (O, P) by a backward pass through the tail."""
    from gradleak.models.numpy_autodiff import deltas
    from gradleak.operators.convolution import Convolution

    behind, first = _behind(view), view.chain.convolutions[0]
    second = behind.chain.convolutions[0]
    weights = dict(behind.weights)
    delta = deltas(behind.chain, weights, features, label, view.loss)[second.name]
    convolution = Convolution(weights[f"{second.name}.weight"].astype(np.float64), second.shape)
    back = convolution.adjoint(delta.ravel()).reshape(first.shape.filters, -1)
    return np.asarray(back * first.activation.derivative(s))


def _filled(image: np.ndarray, view: AttackerView, *, centre: bool) -> np.ndarray:
    """Scale the image to fill the input range, with each channel's mean in its middle if free."""
    middle = (view.low + view.high) / 2.0 if centre else 0.0
    if centre:
        image = image - image.mean((1, 2), keepdims=True)
    room = [(view.high - middle) / float(image.max()), (view.low - middle) / float(image.min())]
    return middle + image * min((one for one in room if one > 0), default=1.0)
