"""Layers of a residual network for many members at once, and what they keep between passes.

Images are (K, M, C, H, W), K of each of M members. Without a copy they are a batch (K·M, C, H, W)
for filters that all members share, and (K, M·C, H, W) in M groups for individual filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from gradleak.attacks.optimization.engine.chain_gradients import (
    activate,
    derivative_of,
    second_of,
    times,
)
from gradleak.models.build import EPSILON
from gradleak.models.chain import ConvPart, Layer
from gradleak.models.pools import POOL, window_of
from gradleak.operators.shape import ConvShape

Weights = Mapping[str, Tensor]

# All dimensions but members and channels of images (K, M, C, H, W).
PLACES = (0, 3, 4)
# Up to this many positions, gradients of individual filters are products with windows.
FEW = 32


@dataclass(frozen=True)
class Convolution:
    """A convolution with filters (O, C, h, w) shared by members or individual (M, O, C, h, w).

    Measured on one thread: for 4 or more members, direct convolutions are faster than products
    with unfolded windows, except where the kernel is 1x1 and for gradients of filters that have
    few positions.
    """

    shape: ConvShape

    @property
    def _is_product(self) -> bool:
        return self.shape.kernel == (1, 1) and self.shape.padding == (0, 0)

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return W x (K, M, O, P, Q)."""
        if self._multiplies(x, weight):
            found = torch.bmm(_rows(weight, x), self._thinned(x).flatten(0, 1).flatten(2))
            return found.unflatten(0, x.shape[:2]).unflatten(3, self.shape.output)
        stride, padding = self.shape.stride, self.shape.padding
        if weight.ndim == 4:
            found = functional.conv2d(x.flatten(0, 1), weight, None, stride, padding)
            return found.unflatten(0, x.shape[:2])
        own, members = weight.flatten(0, 1), x.shape[1]
        found = functional.conv2d(x.flatten(1, 2), own, None, stride, padding, 1, members)
        return found.unflatten(1, (members, -1))

    def adjoint(self, y: Tensor, weight: Tensor) -> Tensor:
        """Return Wᵀ y (K, M, C, H, W)."""
        size = (*y.shape[:2], self.shape.channels, *self.shape.size)
        if self._multiplies(y, weight):
            found = torch.bmm(_rows(weight, y).mT, y.flatten(0, 1).flatten(2))
            return self._spread(found, size)
        stride, padding = self.shape.stride, self.shape.padding
        if weight.ndim == 4:
            flat = (size[0] * size[1], *size[2:])
            return conv2d_input(flat, weight, y.flatten(0, 1), stride, padding).view(size)
        flat, own = (size[0], size[1] * size[2], *size[3:]), weight.flatten(0, 1)
        found = conv2d_input(flat, own, y.flatten(1, 2), stride, padding, 1, size[1])
        return found.view(size)

    def outer(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient (M, O, C, h, w) of <y, W x> in each member's filters."""
        shape, members = self.shape, x.shape[1]
        own = (shape.filters, shape.channels, *shape.kernel)
        if self._is_product or shape.positions <= FEW:
            # (M, ., K·P)
            left = y.flatten(3).movedim(0, 2).flatten(2)
            right = self._windows(x).movedim(0, 2).flatten(2)
            return torch.bmm(left, right.mT).unflatten(2, own[1:])
        given = x.flatten(1, 2), (members * own[0], *own[1:]), y.flatten(1, 2)
        found = conv2d_weight(*given, shape.stride, shape.padding, 1, members)
        return found.unflatten(0, (members, -1))

    def _multiplies(self, images: Tensor, weight: Tensor) -> bool:
        """True to use a matrix product; individual filters would be copied for each of K images."""
        return self._is_product and (weight.ndim == 4 or len(images) == 1)

    def _windows(self, x: Tensor) -> Tensor:
        """Unfold windows (K, M, C·h·w, P·Q)."""
        if self._is_product:
            return self._thinned(x).flatten(3)
        shape = self.shape
        found = functional.unfold(
            x.flatten(0, 1), shape.kernel, padding=shape.padding, stride=shape.stride
        )
        return found.unflatten(0, x.shape[:2])

    def _thinned(self, x: Tensor) -> Tensor:
        """Select the pixels that a 1x1 kernel meets."""
        down, across = self.shape.stride
        return x if down == across == 1 else x[..., ::down, ::across]

    def _spread(self, rows: Tensor, size: tuple[int, ...]) -> Tensor:
        """Adjoint of `_thinned` for rows (K·M, C, P·Q)."""
        down, across = self.shape.stride
        if down == across == 1:
            return rows.view(size)
        out = rows.new_zeros(size)
        out[..., ::down, ::across] = rows.view(*size[:3], *self.shape.output)
        return out


def _rows(weight: Tensor, images: Tensor) -> Tensor:
    """Return 1x1 filters as matrices (K·M, O, C)."""
    if weight.ndim == 4:
        return weight.flatten(1).expand(len(images) * images.shape[1], -1, -1)
    return weight.flatten(2)


@dataclass(frozen=True)
class Normed:
    """A linear output u normalised to mean 0 and variance 1 of each channel."""

    values: Tensor  # û = (u − mean) / σ, σ = sqrt(variance + ε)
    inverse: Tensor  # 1/σ (M or 1, C, 1, 1)
    # True if mean and variance are those of each member's images, and change with them.
    training: bool

    @staticmethod
    def of_batch(u: Tensor) -> Normed:
        """Normalise by the statistics of each member's images."""
        centred = u - u.mean(PLACES, keepdim=True)
        inverse = torch.rsqrt(_mean(centred, centred) + EPSILON)
        return Normed(centred.mul_(inverse), inverse, True)

    @staticmethod
    def by(u: Tensor, mean: Tensor, inverse: Tensor) -> Normed:
        """Normalise by given statistics; overwrites `u`."""
        return Normed(u.sub_(mean).mul_(inverse), inverse, False)

    def along(self, v: Tensor) -> Tensor:
        """Return J v, J = dû/du, which is its own adjoint; overwrites `v`."""
        if self.training:
            share = _mean(self.values, v)
            v = v.sub_(v.mean(PLACES, keepdim=True)).addcmul_(self.values, share, value=-1.0)
        return v.mul_(self.inverse)

    def bend(self, v: Tensor, moved: Tensor) -> Tensor:
        """Return the gradient in u of <v, J `moved`> in training."""
        a, b = (w - w.mean(PLACES, keepdim=True) for w in (v, moved))
        along_a, along_b = _mean(self.values, a), _mean(self.values, b)
        # <v, J moved> / n
        inner = self.inverse * (_mean(a, b) - along_a * along_b)
        found = self.along(a.mul_(along_b).addcmul_(b, along_a)).mul_(-self.inverse)
        return found.addcmul_(self.values, inner * self.inverse, value=-1.0)


def _mean(a: Tensor, b: Tensor) -> Tensor:
    """Mean of a∘b of each member and channel (1, M, C, 1, 1)."""
    return (a * b).mean(PLACES, keepdim=True)


@dataclass(frozen=True)
class Pooled:
    """Output of a pool for images (K, M, O, H, W), with the data to repeat and differentiate it."""

    values: Tensor  # (K, M, O, H', W')
    pool: str  # as of `gradleak.models.chain.ConvLayer`
    size: tuple[int, int]  # (H, W)
    places: Tensor | None = None  # indices of the largest values (K·M, O, H', W')

    @staticmethod
    def of(images: Tensor, pool: str) -> Pooled:
        """Pool `images`."""
        size = (images.shape[3], images.shape[4])
        window = window_of(pool)
        if window is None or window.kind != "max":
            return Pooled(_averaged(images, pool), pool, size)
        found, places = functional.max_pool2d(
            images.flatten(0, 1), window.side, window.stride, window.padding, return_indices=True
        )
        return Pooled(found.unflatten(0, images.shape[:2]), pool, size, places)

    def along(self, tangent: Tensor) -> Tensor:
        """Return the tangent of the values for a tangent of the images (K, M, O, H, W)."""
        if self.places is None:
            return _averaged(tangent, self.pool)
        found = tangent.flatten(0, 1).flatten(2).gather(2, self.places.flatten(2))
        return found.view(self.values.shape)

    def adjoint(self, gradient: Tensor) -> Tensor:
        """Adjoint of `along`, shaped as the images."""
        if self.pool == "none":
            return gradient
        if self.pool == "global":
            share = gradient / (self.size[0] * self.size[1])
            return share.expand(*gradient.shape[:3], *self.size)
        if self.pool == "average":
            wide = gradient.repeat_interleave(POOL, -1).repeat_interleave(POOL, -2)
            return wide / POOL**2
        if self.places is None:
            return self._spread(gradient)
        flat = gradient.flatten(0, 1).flatten(2)
        out = flat.new_zeros(*flat.shape[:2], self.size[0] * self.size[1])
        # Windows that overlap share pixels.
        out.scatter_add_(2, self.places.flatten(2), flat)
        return out.view(*gradient.shape[:3], *self.size)

    def _spread(self, gradient: Tensor) -> Tensor:
        """Adjoint of a mean over windows of any side, stride and padding."""
        window = window_of(self.pool)
        assert window is not None
        area = window.side**2
        flat = gradient.flatten(0, 1).flatten(2)  # (K·M, O, H'·W')
        shares = (flat / area).unsqueeze(2).expand(-1, -1, area, -1).flatten(1, 2)
        sizes = self.size, window.side, 1, window.padding, window.stride
        return functional.fold(shares, *sizes).unflatten(0, gradient.shape[:2])


def _averaged(images: Tensor, pool: str) -> Tensor:
    if pool == "none":
        return images
    if pool == "global":
        return images.mean((3, 4), keepdim=True)
    window = window_of(pool)
    assert window is not None
    sizes = window.side, window.stride, window.padding
    return functional.avg_pool2d(images.flatten(0, 1), *sizes).unflatten(0, images.shape[:2])


@dataclass
class Passed:
    """Values that a branch keeps between passes; images are (K, M, C, H, W)."""

    x: Tensor  # input
    normed: Normed | None = None  # its normalised linear output
    scaled: Tensor | None = None  # v = γ δ, where the batch norm has curvature
    left: Tensor = field(init=False)  # dℓ/du, u = W x
    moved: Tensor | None = None  # the tangent of u, where the batch norm has curvature
    # In a locked branch: the tangent of û, and gradients (M, 2 O) in γ and β of the second pass.
    turned: Tensor | None = None
    scaling: Tensor | None = None


@dataclass(frozen=True)
class Branch:
    """One term of a layer's sum: a convolution `part`, and the batch norm behind it.

    Its methods take the weights by name, channels as (M or 1, C, 1, 1).
    """

    part: ConvPart
    training: bool  # true if the batch norm uses the statistics of each member's images

    @property
    def convolution(self) -> Convolution:
        """Its convolution, without the bias."""
        return Convolution(self.part.shape)

    def enter(self, x: Tensor, weights: Weights) -> tuple[Passed, Tensor]:
        """First forward pass: return the branch's term of its layer's z, in new memory."""
        u = self.convolution.apply(x, weights[f"{self.part.name}.weight"])
        if self.part.bias:
            u = u.add_(weights[f"{self.part.name}.bias"])
        if not self.part.normed:
            return Passed(x), u
        normed = (
            Normed.of_batch(u)
            if self.training
            else Normed.by(
                u, weights[f"{self.part.norm}.mean"], weights[f"{self.part.norm}.inverse"]
            )
        )
        scale, shift = weights[f"{self.part.norm}.weight"], weights[f"{self.part.norm}.bias"]
        return Passed(x, normed), torch.addcmul(shift, normed.values, scale)

    def leave(
        self, passed: Passed, delta: Tensor, weights: Weights, out: dict[str, Tensor]
    ) -> Tensor:
        """First backward pass: return dℓ/du from δ and put gradients (M, ...) into `out`."""
        left = delta
        if passed.normed is not None:
            out[f"{self.part.norm}.bias"] = delta.sum(PLACES)
            out[f"{self.part.norm}.weight"] = (delta * passed.normed.values).sum(PLACES)
            left = delta * weights[f"{self.part.norm}.weight"]
            if self.training:
                passed.scaled = left.clone()
            left = passed.normed.along(left)
        passed.left = left
        out[f"{self.part.name}.weight"] = self.convolution.outer(passed.x, left)
        if self.part.bias:
            out[f"{self.part.name}.bias"] = left.sum(PLACES)
        return left

    def move(self, passed: Passed, x: Tensor | None, weights: Weights, moves: Weights) -> Tensor:
        """Output tangent of `enter`, in new memory; `x` is None for images, which do not move."""
        u = self.convolution.apply(passed.x, moves[f"{self.part.name}.weight"])
        if x is not None:
            u = u.add_(self.convolution.apply(x, weights[f"{self.part.name}.weight"]))
        if self.part.bias:
            u = u.add_(moves[f"{self.part.name}.bias"])
        if passed.normed is None:
            return u
        if self.training:
            passed.moved = u.clone()
        found = passed.normed.along(u)
        if self.part.lock is not None:
            passed.turned = found.clone()
        found = found.mul_(weights[f"{self.part.norm}.weight"])
        found = found.addcmul_(passed.normed.values, moves[f"{self.part.norm}.weight"])
        return found.add_(moves[f"{self.part.norm}.bias"])

    def go_back(
        self, passed: Passed, known: Tensor, delta: Tensor, weights: Weights, moves: Weights
    ) -> Tensor:
        """Second backward pass: gradient in the input, from those in z of both passes."""
        u = delta
        if passed.normed is not None:
            if passed.turned is not None:
                in_scale = (delta * passed.normed.values).addcmul_(known, passed.turned)
                passed.scaling = torch.cat((in_scale.sum(PLACES), delta.sum(PLACES)), 1)
            u = delta * weights[f"{self.part.norm}.weight"]
            u = passed.normed.along(u.addcmul_(known, moves[f"{self.part.norm}.weight"]))
            if passed.scaled is not None and passed.moved is not None:
                u = u.add_(passed.normed.bend(passed.scaled, passed.moved))
        name = f"{self.part.name}.weight"
        found = self.convolution.adjoint(u, weights[name])
        return found.add_(self.convolution.adjoint(passed.left, moves[name]))


@dataclass
class Step:
    """Values that a layer keeps: (K, M, O, H, W) in a convolution, else (M, K, n)."""

    output: Tensor  # a(z)
    derivative: Tensor | None  # a'(z), None for 1
    branches: list[Passed] = field(default_factory=list)  # of a convolution
    pooled: Pooled = field(init=False)  # after a convolution
    x: Tensor = field(init=False)  # input of a fully connected layer
    back: Tensor = field(init=False)  # dℓ/da(z)
    delta: Tensor = field(init=False)  # dℓ/dz
    tangent: Tensor = field(init=False)  # ż

    @staticmethod
    def of(layer: Layer, z: Tensor) -> Step:
        """Apply a layer's activation; may overwrite `z`."""
        value = z.relu_() if layer.activation.name == "relu" else activate(layer.activation, z)
        return Step(value, derivative_of(layer.activation, z, value))

    def bent(self, layer: Layer, back: Tensor) -> Tensor:
        """Second backward pass through the activation: a'(z) ∘ back plus the term in a''(z)."""
        delta = times(self.derivative, back)
        if layer.activation.is_homogeneous:
            return delta
        second = second_of(layer.activation, self.output, self.derivative)
        return delta + second * (self.tangent * self.back)


class Waiting:
    """Gradients in the layers' inputs, summed until the backward pass reaches each."""

    def __init__(self, last: int, gradient: Tensor) -> None:
        self._found = {last: gradient}
        self._shared = {last}

    def add(self, number: int, gradient: Tensor, *, shared: bool = False) -> None:
        """Add to entry `number`; a `shared` gradient is not overwritten."""
        if number not in self._found:
            self._found[number] = gradient
            self._shared |= {number} if shared else set()
        elif number not in self._shared:
            self._found[number].add_(gradient)
        else:
            self._found[number] = self._found[number] + gradient
            self._shared.discard(number)

    def pop(self, number: int) -> Tensor:
        """Remove an entry and return its sum."""
        return self._found.pop(number)
