"""Layers of a residual network on their passes: what each keeps, and how branches sum up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gradleak.matching.branch_layers import PLACES, Convolution, Normed, Pooled
from gradleak.matching.chain_gradients import activate, derivative_of
from gradleak.matching.descent import KINKED, second_of, times
from gradleak.models.chain import ConvLayer, Layer

Weights = Mapping[str, torch.Tensor]


@dataclass
class Passed:
    """What a branch keeps of its passes; images are (K, M, C, H, W).

    Attributes
    ----------
    x
        What entered.
    normed
        Its normalised linear output.
    scaled
        v = γ δ, where the norm bends.
    left
        dℓ/du, u = W x.
    moved
        The tangent of u, where the norm bends.
    turned, scaling
        In a locked branch the tangent of û, and gradients (M, 2 O) in γ and β of the second pass.
    """

    x: torch.Tensor
    normed: Normed | None = None
    scaled: torch.Tensor | None = None
    left: torch.Tensor | None = None
    moved: torch.Tensor | None = None
    turned: torch.Tensor | None = None
    scaling: torch.Tensor | None = None


@dataclass(frozen=True)
class Branch:
    """One way into a layer's sum: the convolution `name` of what entered `back` − 1 layers before.

    Its methods take the weights by name, channels as (M or 1, C, 1, 1).

    Attributes
    ----------
    name, back
        See above.
    convolution
        Its sizes.
    bias, normed
        Whether it has a bias, and a norm ``{name}_norm``.
    training
        Whether the norm takes the statistics of each member's images.
    locked
        Whether gradients in the norm's scale and shift are wanted too.
    """

    name: str
    back: int
    convolution: Convolution
    bias: bool
    normed: bool
    training: bool
    locked: bool = False

    @property
    def norm(self) -> str:
        """Name of the norm."""
        return f"{self.name}_norm"

    def enter(self, x: torch.Tensor, weights: Weights) -> tuple[Passed, torch.Tensor]:
        """First pass forward: what the branch adds to its layer's z, in new memory."""
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
        self, passed: Passed, delta: torch.Tensor, weights: Weights, out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """First pass back: dℓ/du from δ; gradients (M, ...) are put into `out`."""
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

    def move(
        self, passed: Passed, x: torch.Tensor | None, weights: Weights, moves: Weights
    ) -> torch.Tensor:
        """Tangent of what `enter` gave, as the weights move along `moves` and the input along `x`.

        In new memory; the images themselves do not move, None.
        """
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
        self,
        passed: Passed,
        known: torch.Tensor,
        delta: torch.Tensor,
        weights: Weights,
        moves: Weights,
    ) -> torch.Tensor:
        """Second pass back: gradient in what entered, from those in z of both passes.

        Parameters
        ----------
        passed
            What the branch kept.
        known, delta
            Gradients in z of the first pass and of this one.
        weights, moves
            As of `move`.
        """
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
    """The convolution of `layer`, and that of its skip."""
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
    """What a layer keeps of its passes: (K, M, O, H, W) in a convolution, else (M, K, n).

    Attributes
    ----------
    output, derivative
        a(z) and a'(z), None for 1.
    branches
        Of a convolution.
    pooled
        After a convolution.
    x
        What entered a fully connected layer.
    back, delta
        dℓ/da(z) and dℓ/dz.
    tangent
        ż.
    """

    output: torch.Tensor
    derivative: torch.Tensor | None
    branches: list[Passed] = field(default_factory=list)
    pooled: Pooled | None = None
    x: torch.Tensor | None = None
    back: torch.Tensor | None = None
    delta: torch.Tensor | None = None
    tangent: torch.Tensor | None = None

    @staticmethod
    def of(layer: Layer, z: torch.Tensor) -> Step:
        """Pass a layer's activation; may overwrite `z`."""
        if layer.activation.name == "relu":
            value = z = z.relu_()
        else:
            value = activate(layer.activation, z)
        return Step(value, derivative_of(layer.activation, z, value))

    def bent(self, layer: Layer, back: torch.Tensor) -> torch.Tensor:
        """Second pass back through a layer's activation: a'(z) ∘ back, and what a''(z) adds."""
        delta = times(self.derivative, back)
        if layer.activation.name in KINKED:
            return delta
        assert self.tangent is not None and self.back is not None
        return delta + second_of(layer.activation, self.output, self.derivative) * (
            self.tangent * self.back
        )


class Waiting:
    """Gradients in what enters each layer, which sum up until the pass back reaches it."""

    def __init__(self, last: int, gradient: torch.Tensor) -> None:
        self._found = {last: gradient}
        self._shared = {last}

    def add(self, number: int, gradient: torch.Tensor, *, shared: bool = False) -> None:
        """Add to entry `number`; what is `shared` is not overwritten."""
        if number not in self._found:
            self._found[number] = gradient
            if shared:
                self._shared.add(number)
        elif number not in self._shared:
            self._found[number].add_(gradient)
        else:
            self._found[number] = self._found[number] + gradient
            self._shared.discard(number)

    def pop(self, number: int) -> torch.Tensor:
        """The sum of an entry, for the last time."""
        return self._found.pop(number)
