"""Layers of a residual network and the values they keep between passes, branch by branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.branch_layers import PLACES, Convolution, Normed, Pooled
from gradleak.attacks.optimization.engine.chain_gradients import activate, derivative_of
from gradleak.attacks.optimization.engine.double_backward import KINKED, second_of, times
from gradleak.models.chain import ConvLayer, Layer

Weights = Mapping[str, Tensor]


@dataclass
class Passed:
    """Values that a branch keeps between passes; images are (K, M, C, H, W)."""

    x: Tensor  # input
    normed: Normed | None = None  # its normalised linear output
    scaled: Tensor | None = None  # v = γ δ, where the batch norm has curvature
    left: Tensor | None = None  # dℓ/du, u = W x
    moved: Tensor | None = None  # the tangent of u, where the batch norm has curvature
    # In a locked branch: the tangent of û, and gradients (M, 2 O) in γ and β of the second pass.
    turned: Tensor | None = None
    scaling: Tensor | None = None


@dataclass(frozen=True)
class Branch:
    """One term of a layer's sum: a convolution of the input of the layer `back` − 1 places before.

    Its methods take the weights by name, channels as (M or 1, C, 1, 1).
    """

    name: str  # of the convolution's parameters
    back: int
    convolution: Convolution  # its shape
    bias: bool  # True if it has a bias
    normed: bool  # true if it has a batch norm ``{name}_norm``
    training: bool  # true if the batch norm uses the statistics of each member's images
    locked: bool = False  # true to compute gradients in the batch norm's scale and shift too

    @property
    def norm(self) -> str:
        """Name of the batch norm."""
        return f"{self.name}_norm"

    def enter(self, x: Tensor, weights: Weights) -> tuple[Passed, Tensor]:
        """First forward pass: return the branch's term of its layer's z, in new memory."""
        u = self.convolution.apply(x, weights[f"{self.name}.weight"])
        if self.bias:
            u = u.add_(weights[f"{self.name}.bias"])
        if not self.normed:
            return Passed(x), u
        normed = (
            Normed.of_batch(u)
            if self.training
            else Normed.by(u, weights[f"{self.norm}.mean"], weights[f"{self.norm}.inverse"])
        )
        scale, shift = weights[f"{self.norm}.weight"], weights[f"{self.norm}.bias"]
        return Passed(x, normed), torch.addcmul(shift, normed.values, scale)

    def leave(
        self, passed: Passed, delta: Tensor, weights: Weights, out: dict[str, Tensor]
    ) -> Tensor:
        """First backward pass: return dℓ/du from δ and put gradients (M, ...) into `out`."""
        left = delta
        if passed.normed is not None:
            out[f"{self.norm}.bias"] = delta.sum(PLACES)
            out[f"{self.norm}.weight"] = (delta * passed.normed.values).sum(PLACES)
            left = delta * weights[f"{self.norm}.weight"]
            if self.training:
                passed.scaled = left.clone()
            left = passed.normed.along(left)
        passed.left = left
        out[f"{self.name}.weight"] = self.convolution.outer(passed.x, left)
        if self.bias:
            out[f"{self.name}.bias"] = left.sum(PLACES)
        return left

    def move(self, passed: Passed, x: Tensor | None, weights: Weights, moves: Weights) -> Tensor:
        """Output tangent of `enter`, in new memory; `x` is None for images, which do not move."""
        u = self.convolution.apply(passed.x, moves[f"{self.name}.weight"])
        if x is not None:
            u = u.add_(self.convolution.apply(x, weights[f"{self.name}.weight"]))
        if self.bias:
            u = u.add_(moves[f"{self.name}.bias"])
        if passed.normed is None:
            return u
        if self.training:
            passed.moved = u.clone()
        found = passed.normed.along(u)
        if self.locked:
            passed.turned = found.clone()
        found = found.mul_(weights[f"{self.norm}.weight"])
        found = found.addcmul_(passed.normed.values, moves[f"{self.norm}.weight"])
        return found.add_(moves[f"{self.norm}.bias"])

    def go_back(
        self, passed: Passed, known: Tensor, delta: Tensor, weights: Weights, moves: Weights
    ) -> Tensor:
        """Second backward pass: gradient in the input, from those in z of both passes."""
        u = delta
        if passed.normed is not None:
            if passed.turned is not None:
                in_scale = (delta * passed.normed.values).addcmul_(known, passed.turned)
                passed.scaling = torch.cat((in_scale.sum(PLACES), delta.sum(PLACES)), 1)
            u = delta * weights[f"{self.norm}.weight"]
            u = passed.normed.along(u.addcmul_(known, moves[f"{self.norm}.weight"]))
            if passed.scaled is not None and passed.moved is not None:
                u = u.add_(passed.normed.bend(passed.scaled, passed.moved))
        assert passed.left is not None
        name = f"{self.name}.weight"
        found = self.convolution.adjoint(u, weights[name])
        return found.add_(self.convolution.adjoint(passed.left, moves[name]))


def branches_of(layer: ConvLayer, *, training: bool) -> list[Branch]:
    """Branches of `layer`: its convolution, and that of its skip."""
    return [
        Branch(
            part.name,
            part.back,
            Convolution(part.shape),
            part.bias,
            part.normed,
            training,
            part.lock is not None,
        )
        for part in layer.parts
    ]


@dataclass
class Step:
    """Values that a layer keeps: (K, M, O, H, W) in a convolution, else (M, K, n)."""

    output: Tensor  # a(z)
    derivative: Tensor | None  # a'(z), None for 1
    branches: list[Passed] = field(default_factory=list)  # of a convolution
    pooled: Pooled | None = None  # after a convolution
    x: Tensor | None = None  # input of a fully connected layer
    back: Tensor | None = None  # dℓ/da(z)
    delta: Tensor | None = None  # dℓ/dz
    tangent: Tensor | None = None  # ż

    @staticmethod
    def of(layer: Layer, z: Tensor) -> Step:
        """Apply a layer's activation; may overwrite `z`."""
        if layer.activation.name == "relu":
            value = z = z.relu_()
        else:
            value = activate(layer.activation, z)
        return Step(value, derivative_of(layer.activation, z, value))

    def bent(self, layer: Layer, back: Tensor) -> Tensor:
        """Second backward pass through the activation: a'(z) ∘ back plus the term in a''(z)."""
        delta = times(self.derivative, back)
        if layer.activation.name in KINKED:
            return delta
        assert self.tangent is not None and self.back is not None
        return delta + second_of(layer.activation, self.output, self.derivative) * (
            self.tangent * self.back
        )


class Waiting:
    """Gradients in the layers' inputs, summed until the backward pass reaches each."""

    def __init__(self, last: int, gradient: Tensor) -> None:
        self._found = {last: gradient}
        self._shared = {last}

    def add(self, number: int, gradient: Tensor, *, shared: bool = False) -> None:
        """Add to entry `number`; a `shared` gradient is not overwritten."""
        if number not in self._found:
            self._found[number] = gradient
            if shared:
                self._shared.add(number)
        elif number not in self._shared:
            self._found[number].add_(gradient)
        else:
            self._found[number] = self._found[number] + gradient
            self._shared.discard(number)

    def pop(self, number: int) -> Tensor:
        """Remove an entry and return its sum."""
        return self._found.pop(number)
