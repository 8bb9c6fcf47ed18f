"""Computations of an attacker from weights and gradients alone, layer by layer (FedKL III-A, B)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg

from gradleak.attacks.closed_form.fully_connected import from_delta
from gradleak.models.chain import ConvLayer
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape
from gradleak.operators.system import LayerSystem

Arrays = Mapping[str, np.ndarray]
# ε of the norm (eq. 26), PyTorch's default.
EPSILON = 1e-5
# Singular values below this share of the largest count as 0, the columns having length 1, by the
# precision of the gradient.
RANK_TOLERANCE = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 1e-5}
# Values of a channel that the activation has to show (slope and offset take two), and how far
# apart they have to lie: γ = 0 leaves nothing of the input.
ENOUGH, APART = 3, 1e-6


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
    known = np.concatenate([shown, gradients[f"{layer.name}.weight"].astype(np.float64).ravel()])
    system, values = LayerSystem(convolution, constraint, opened.known).balance(known)
    free = shape.unknowns - system.rank
    return Input(None if free else system.solve(values).x, delta.reshape(shape.filters, -1), free)


@dataclass(frozen=True)
class Affine:
    """γ and β (O,) of a norm."""

    scale: np.ndarray
    shift: np.ndarray

    def __getitem__(self, channels: np.ndarray) -> Affine:
        return Affine(self.scale[channels], self.shift[channels])


@dataclass(frozen=True)
class Normalised:
    """Quantities of conv, norm, activation and a last layer, from the gradient."""

    # free unknowns of the input, beyond its scale and, without padding, a shift of each channel; if
    # any, nothing else is given
    free: int
    # input (n,) of length 1 (its scale is `factor`), without padding of mean 0 in each channel
    x: np.ndarray
    # bool (O,), channels of which the activation shows enough; the following are of these
    channels: np.ndarray
    normalised: np.ndarray  # û (O', P) (eq. 26)
    back: np.ndarray  # ∂L/∂s (O', P)
    affine: Affine  # γ and β: as given, or from the gradient (γ without its sign)
    factor: float  # length of the input (minus its shift), from ε


@dataclass(frozen=True)
class _Shown:
    """Known quantities of a layer's shown channels."""

    shape: ConvShape
    convolution: Convolution
    values: np.ndarray  # s (O', P) where `known`
    known: np.ndarray
    back: np.ndarray  # ∂L/∂s (O', P)
    gradient: np.ndarray  # ∂L/∂θ (O', taps)

    def meets(self, delta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """K_delta x (O', taps)."""
        return self.constraint(delta).apply(x).reshape(self.gradient.shape)

    def constraint(self, delta: np.ndarray) -> GradientConstraint:
        """K made of `delta` (O', P)."""
        return GradientConstraint(delta.reshape(self.shape.filters, *self.shape.output), self.shape)


def through_norm(
    layer: ConvLayer, weights: Arrays, gradients: Arrays, found: Head, affine: Affine | None
) -> Normalised:
    """Input of a normalised convolution in training mode, for a batch of one image.

    The part of s = γ û + β (eq. 27) that the activation shows is linear in x: W x = σ û + μ. With
    x, σ and μ (or, if γ and β are unknown, σ/γ and μ − β σ/γ) as unknowns that is a homogeneous
    system, W x − σ û − μ = 0, to which the gradient adds K_v x − σ ∂L/∂θ = 0 with the known
    v = σ ∂L/∂u (eq. 33) if the activation shows all of s and γ and β are known. The scale then
    follows from ε: σ² + ε = ε / (1 − mean û²).

    `layer` is the convolution, without bias, `found` the result of `head`, `affine` has γ and β, or
    is None if a lock hides them.
    """
    shown, channels = _shown(layer, weights, gradients, found)
    inside = shown.values if affine is None else _u_hat(shown, affine[channels])
    rows = [_forward_rows(shown, inside)]
    if affine is not None and shown.known.all():
        rows.append(_gradient_rows(shown, affine[channels]))
    shifts = shown.shape.channels if shown.shape.padding == (0, 0) else 0
    tolerance = RANK_TOLERANCE[gradients[f"{layer.name}.weight"].dtype]
    null = _null_space(np.concatenate(rows), tolerance, at_least=1 + shifts)
    free = null.shape[1] - 1 - shifts
    if free:
        nothing = np.empty(0)
        return Normalised(free, nothing, channels, nothing, nothing, Affine(nothing, nothing), 0.0)
    x, slopes, offsets = _direction(null, shown.shape, shifts > 0)
    linear = shown.convolution.apply(x).reshape(shown.back.shape)
    inside = (linear - offsets[:, None]) / slopes[:, None]
    if affine is None:
        # Here `inside` is s, and slopes are sqrt(σ² + ε) / γ.
        unlocked, normalised = _unlock(shown, inside, x, slopes)
        slopes = slopes * unlocked.scale
    else:
        unlocked, normalised = affine[channels], inside
    excess = np.abs(1.0 - (normalised**2).mean(axis=1))
    factor = float(np.median(np.sqrt(EPSILON / excess) / np.abs(slopes)))
    return Normalised(0, x, channels, normalised, shown.back, unlocked, factor)


def _shown(
    layer: ConvLayer, weights: Arrays, gradients: Arrays, found: Head
) -> tuple[_Shown, np.ndarray]:
    """Shown part of the channels of which enough is, and which channels these are (O,)."""
    opened = layer.activation.open(found.features)
    filters = layer.shape.filters
    values = opened.z.reshape(filters, -1)
    back = (found.back * layer.activation.derivative(opened.z)).reshape(values.shape)
    known = np.ones_like(values, bool) if opened.known is None else opened.known.reshape(back.shape)
    count = known.sum(axis=1)
    mean = (values * known).sum(axis=1) / np.maximum(count, 1)
    apart = (np.abs(values - mean[:, None]) * known).max(axis=1)
    channels = (count >= ENOUGH) & (apart > APART * np.abs(values).max())
    shape = replace(layer.shape, filters=int(channels.sum()))
    gradient = gradients[f"{layer.name}.weight"].astype(np.float64).reshape(filters, -1)
    convolution = Convolution(weights[f"{layer.name}.weight"][channels], shape)
    arrays = (each[channels] for each in (values, known, back, gradient))
    return _Shown(shape, convolution, *arrays), channels


def _u_hat(shown: _Shown, affine: Affine) -> np.ndarray:
    """û (O', P) of eq. (27), where s is known."""
    return (shown.values - affine.shift[:, None]) / affine.scale[:, None]


def _forward_rows(shown: _Shown, inside: np.ndarray) -> np.ndarray:
    """W x − σ û − μ = 0 for every known value: rows over (x, σ, μ)."""
    channel = np.repeat(np.eye(shown.shape.filters), shown.shape.positions, axis=0)
    rows = np.hstack([shown.convolution.dense(), -channel * inside.reshape(-1, 1), -channel])
    return rows[shown.known.ravel()]


def _gradient_rows(shown: _Shown, affine: Affine) -> np.ndarray:
    """K_v x − σ ∂L/∂θ = 0 as rows over (x, σ, μ), each of length 1."""
    v = centred(affine.scale[:, None] * shown.back, _u_hat(shown, affine))
    channel = np.repeat(np.eye(shown.shape.filters), shown.gradient.shape[1], axis=0)
    own = -channel * shown.gradient.reshape(-1, 1)
    rows = np.hstack([shown.constraint(v).dense(), own, np.zeros_like(channel)])
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)


def centred(back: np.ndarray, normalised: np.ndarray) -> np.ndarray:
    """sqrt(σ² + ε) ∂L/∂u of a norm over positions (eq. 33, with its sums), from ∂L/∂û and û."""
    means = back.mean(axis=1, keepdims=True)
    along = (back * normalised).mean(axis=1, keepdims=True)
    return back - means - normalised * along


def _null_space(matrix: np.ndarray, tolerance: float, at_least: int) -> np.ndarray:
    """Basis (n, d) of the null space, of dimension `at_least` or more."""
    lengths = np.linalg.norm(matrix, axis=0)
    lengths[lengths == 0] = 1.0
    triangle = linalg.qr(matrix / lengths, mode="r", check_finite=False)[0]
    _, values, right = linalg.svd(triangle[: triangle.shape[1]], check_finite=False)
    rank = int((values > tolerance * values[0]).sum())
    return right[min(rank, len(right) - at_least) :].T / lengths[:, None]


def _direction(
    null: np.ndarray, shape: ConvShape, shifted: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, σ and μ of the remaining direction; |x| = 1 and, if `shifted`, channel means are 0."""
    pixels, filters = shape.unknowns, shape.filters
    vector = null[:, 0]
    if shifted:
        # A shift has no σ, an image has: the first right vector is the image's direction.
        right = linalg.svd(null[pixels : pixels + filters], check_finite=False)[2]
        shifts, vector = null @ right[1:].T, null @ right[0]
        means = shifts[:pixels].reshape(shape.channels, -1, shape.channels).mean(axis=1)
        wanted = vector[:pixels].reshape(shape.channels, -1).mean(axis=1)
        vector = vector - shifts @ np.linalg.solve(means, wanted)
    vector = vector / np.linalg.norm(vector[:pixels])
    if vector[pixels : pixels + filters].sum() < 0:
        vector = -vector
    return vector[:pixels], vector[pixels : pixels + filters], vector[pixels + filters :]


def _unlock(
    shown: _Shown, s: np.ndarray, x: np.ndarray, slopes: np.ndarray
) -> tuple[Affine, np.ndarray]:
    """γ (without its sign), β and û of a lock, from s and the convolution's gradient.

    β is the mean of s over positions, and γ² mean(û²) its variance. That leaves r = mean(û²), just
    below 1, which follows from the gradient: with c = sqrt(σ² + ε) / γ (`slopes`) and
    h = mean(g (s − β)) / var(s), K_(g − mean g) x − r h K_(s − β) x = c ∂L/∂θ, linear in r for each
    channel.
    """
    shift = s.mean(axis=1)
    spread = s - shift[:, None]
    variance = (spread**2).mean(axis=1)
    along = (shown.back * spread).mean(axis=1) / variance
    flat = shown.meets(shown.back - shown.back.mean(axis=1, keepdims=True), x)
    turned = shown.meets(along[:, None] * spread, x)
    rest = flat - slopes[:, None] * shown.gradient
    share = (rest * turned).sum(axis=1) / (turned**2).sum(axis=1)
    scale = np.sqrt(variance / share)
    return Affine(scale, shift), spread / scale[:, None]
