"""Gradients of many members under residual networks, and of distances between them, by hand.

As `gradleak.matching.descent` does it for plain chains: with the derivative r of a distance in the
gradients held fixed, ∇_x <∇_W ℓ(x; W), r> = ∇_x d/dε ℓ(x; W + εr), which takes a pass forward and
back for the gradients, and another with tangents. No graph is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from gradleak.errors import ConfigError
from gradleak.losses import LOSSES
from gradleak.matching.branch_layers import EPSILON, PLACES, Convolution, Normed, Pooled
from gradleak.matching.chain_gradients import Arrays, _activate, _derivative
from gradleak.matching.descent import KINKED, _product, _rows, _second
from gradleak.matching.distances import Distance
from gradleak.matching.output import output_bend, output_gradient
from gradleak.models.build import ChainModule
from gradleak.models.chain import Chain, ConvLayer, LinearLayer

MODES = ("training", "evaluation")
# Bytes of activations and gradients that are computed at once on a CPU.
CACHE = 32 * 2**20


@dataclass(frozen=True)
class Branch:
    """One way into a layer's sum: the convolution `name` of what entered `back` − 1 layers before.

    Attributes
    ----------
    name, back
        See above.
    convolution
        Its sizes.
    bias, normed
        Whether it has a bias, and a norm ``{name}_norm``.
    """

    name: str
    back: int
    convolution: Convolution
    bias: bool
    normed: bool


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
    """

    x: torch.Tensor
    normed: Normed | None = None
    scaled: torch.Tensor | None = None
    left: torch.Tensor | None = None
    moved: torch.Tensor | None = None


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


class BranchGradients:
    """Gradients of a chain's loss with respect to all parameters, for M members at once.

    Other than `ChainGradients` it knows norms, projections and all pools, but no replicated
    padding.

    Parameters
    ----------
    chain
        Architecture.
    weights
        ``{parameter: array}`` of the parameter's shape if members share it, else (M, ...); with
        running statistics, if there are any.
    loss
        One of `gradleak.losses.LOSSES`.
    mode
        ``training``: norms take the statistics of each member's images. ``evaluation``: they take
        the running ones, mean 0 and variance 1 where there are none.
    device, dtype
        Where and in what precision everything is computed.
    """

    def __init__(
        self,
        chain: Chain,
        weights: Mapping[str, np.ndarray | torch.Tensor],
        loss: str,
        *,
        mode: str = "training",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        for what, value, known in (("loss", loss, LOSSES), ("mode", mode, MODES)):
            if value not in known:
                raise ConfigError(
                    f"{what}: '{value}' is not known; choose one of {', '.join(known)}."
                )
        if not follows(chain):
            raise ConfigError(f"{chain.name} has replicated padding; take it out.")
        self.chain, self.loss, self.mode = chain, loss, mode
        self.device, self.dtype = torch.device(device), dtype
        with torch.device("meta"):
            module = ChainModule(chain)
        self.shapes = {name: tuple(value.shape) for name, value in module.named_parameters()}
        self.names = tuple(self.shapes)
        self._branches = [_branches(layer) for layer in chain.convolutions]
        self._weights = {
            name: self._parameter(name, self.tensor(weights[name])) for name in self.names
        }
        for branch in (branch for several in self._branches for branch in several if branch.normed):
            self._statistics(f"{branch.name}_norm", weights)

    def _parameter(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """A parameter (...) or (M, ...) as it is multiplied with: channels as (M or 1, C, 1, 1)."""
        shape = self.shapes[name]
        if len(shape) == 4:
            return value.contiguous()
        rows = value.reshape(-1, *shape)
        if len(shape) == 2:
            return rows
        return rows.unsqueeze(1) if name.startswith("fc") else rows[..., None, None]

    def _statistics(self, norm: str, weights: Mapping[str, np.ndarray | torch.Tensor]) -> None:
        """Keep mean and 1/σ of evaluation beside the weights."""
        name = f"{norm}.weight"
        there = f"{norm}.running_mean" in weights and self.mode == "evaluation"
        like = self._weights[name][:1]
        mean, variance = torch.zeros_like(like), torch.ones_like(like)
        if there:
            mean, variance = (
                self._parameter(name, self.tensor(weights[f"{norm}.{kind}"]))
                for kind in ("running_mean", "running_var")
            )
        self._weights[f"{norm}.mean"] = mean
        self._weights[f"{norm}.inverse"] = torch.rsqrt(variance + EPSILON)

    def tensor(self, value: np.ndarray | torch.Tensor) -> torch.Tensor:
        """`value` on this object's device and in its precision."""
        return torch.as_tensor(value).to(device=self.device, dtype=self.dtype)

    def targets(self, members: Sequence[Arrays]) -> list[torch.Tensor]:
        """Shared gradients of M members as `__call__` returns its own, (M, ...) each."""
        return [self.tensor(np.stack([member[name] for member in members])) for name in self.names]

    def select(self, index: torch.Tensor | slice) -> BranchGradients:
        """The same for members `index` only; a slice copies nothing."""
        out = object.__new__(BranchGradients)
        out.__dict__.update(self.__dict__)
        out._weights = {
            name: value[index] if self._is_own(name, value) else value
            for name, value in self._weights.items()
        }
        return out

    def _is_own(self, name: str, value: torch.Tensor) -> bool:
        """Whether members have a parameter, or a statistic, of their own."""
        if len(self.shapes.get(name, ())) == 4:
            return value.ndim == 5
        return value.shape[0] > 1

    def at_once(self, batch: int) -> int:
        """How many members to compute at once: as many as fit the processor's cache.

        An accelerator takes all.
        """
        if self.device.type != "cpu":
            return sys.maxsize
        numbers = self.chain.parameters
        for several in self._branches:
            for branch in several:
                shape = branch.convolution.shape
                numbers += 3 * batch * shape.filters * shape.positions
        return max(1, CACHE // (numbers * self.dtype.itemsize))

    @torch.no_grad()
    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Gradients (M, ...) of every parameter in the order of `names`, mean over K.

        Arguments are those of `ChainGradients`; not differentiable.
        """
        steps = self._forward(images)
        return self._listed(self._backward(steps, labels, scale))

    @torch.no_grad()
    def descend(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        distance: Distance,
        scale: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Distances (M,), their gradients in images (M, K, C, H, W) and in dummy logits, if any.

        Parameters
        ----------
        images, labels, scale
            As of `ChainGradients`.
        distance
            See `gradleak.matching.distances`.
        """
        steps = self._forward(images)
        found = self._backward(steps, labels, scale)
        value, residuals, factor = distance(self._listed(found))
        moves = {
            name: self._parameter(name, value)
            for name, value in zip(self.names, residuals, strict=True)
        }
        moved = self._along(steps, moves)
        bend, in_logits = output_bend(self.loss, steps[-1].output, labels, scale, moved)
        down = self._down(steps, moves, bend).transpose(0, 1)
        if in_logits is not None:
            in_logits = in_logits * factor[:, None, None]
        return value, down * factor[:, None, None, None, None], in_logits

    def _listed(self, found: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        return [found[name] for name in self.names]

    def _forward(self, images: torch.Tensor) -> list[Step]:
        """Pass forward: images (M, K, C, H, W)."""
        steps: list[Step] = []
        x = images.transpose(0, 1).contiguous()
        entered: list[torch.Tensor] = []
        for layer, several in zip(self.chain.convolutions, self._branches, strict=True):
            entered.append(x)
            passed, z = [], None
            for branch in several:
                one, out = self._enter(branch, entered[-branch.back])
                passed.append(one)
                z = out if z is None else z.add_(out)
            assert z is not None
            if layer.skip and layer.projection is None:
                z = z.add_(entered[-layer.skip])
            step = _activated(layer, z)
            step.branches, step.pooled = passed, Pooled.of(step.output, layer.pool)
            x = step.pooled.values
            steps.append(step)
        x = x.flatten(2).transpose(0, 1)
        for fc in self._linear:
            z = _rows(x, self._weights[f"{fc.name}.weight"].mT)
            if fc.bias:
                z = z + self._weights[f"{fc.name}.bias"]
            step = _activated(fc, z)
            step.x = x
            x = step.output
            steps.append(step)
        return steps

    @property
    def _linear(self) -> list[LinearLayer]:
        return [layer for layer in self.chain.layers if isinstance(layer, LinearLayer)]

    def _enter(self, branch: Branch, x: torch.Tensor) -> tuple[Passed, torch.Tensor]:
        """What a branch adds to its layer's z, in new memory."""
        u = branch.convolution.apply(x, self._weights[f"{branch.name}.weight"])
        if branch.bias:
            u = u.add_(self._weights[f"{branch.name}.bias"])
        if not branch.normed:
            return Passed(x), u
        norm = f"{branch.name}_norm"
        normed = (
            Normed.of_batch(u)
            if self.mode == "training"
            else Normed.by(u, self._weights[f"{norm}.mean"], self._weights[f"{norm}.inverse"])
        )
        weight, bias = self._weights[f"{norm}.weight"], self._weights[f"{norm}.bias"]
        return Passed(x, normed), torch.addcmul(bias, normed.values, weight)

    def _backward(
        self, steps: list[Step], labels: torch.Tensor, scale: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """Pass back: gradients (M, ...) by name."""
        out: dict[str, torch.Tensor] = {}
        back = output_gradient(self.loss, steps[-1].output, labels, scale)
        depth = len(self.chain.convolutions)
        for layer, step in reversed(list(zip(self._linear, steps[depth:], strict=True))):
            step.back, step.delta = back, _product(step.derivative, back)
            assert step.x is not None
            out[f"{layer.name}.weight"] = step.delta.mT @ step.x
            if layer.bias:
                out[f"{layer.name}.bias"] = step.delta.sum(1)
            back = _rows(step.delta, self._weights[f"{layer.name}.weight"])
        waiting = _Waiting(depth, self._imaged(back))
        for number in reversed(range(depth)):
            layer, step = self.chain.convolutions[number], steps[number]
            assert step.pooled is not None
            step.back = step.pooled.adjoint(waiting.pop(number + 1))
            step.delta = _product(step.derivative, step.back)
            for branch, passed in zip(self._branches[number], step.branches, strict=True):
                left = self._leave(branch, passed, step.delta, out)
                start = number + 1 - branch.back
                if start:
                    weight = self._weights[f"{branch.name}.weight"]
                    waiting.add(start, branch.convolution.adjoint(left, weight))
            if layer.skip and layer.projection is None:
                waiting.add(number + 1 - layer.skip, step.delta, shared=True)
        return out

    def _imaged(self, back: torch.Tensor) -> torch.Tensor:
        """What the first fully connected layer passes back (M, K, n), as images (K, M, C, H, W)."""
        before = self.chain.convolutions
        size = (before[-1].shape.filters, *before[-1].grid) if before else self.chain.input
        return back.transpose(0, 1).unflatten(2, size)

    def _leave(
        self, branch: Branch, passed: Passed, delta: torch.Tensor, out: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """dℓ/du of a branch; its gradients are put into `out`."""
        left = delta
        if passed.normed is not None:
            norm = f"{branch.name}_norm"
            out[f"{norm}.bias"] = delta.sum(PLACES)
            out[f"{norm}.weight"] = (delta * passed.normed.values).sum(PLACES)
            left = delta * self._weights[f"{norm}.weight"]
            if self.mode == "training":
                passed.scaled = left.clone()
            left = passed.normed.along(left)
        passed.left = left
        out[f"{branch.name}.weight"] = branch.convolution.outer(passed.x, left)
        if branch.bias:
            out[f"{branch.name}.bias"] = left.sum(PLACES)
        return left

    def _along(self, steps: list[Step], moves: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Tangent (M, K, m) of the outputs as the weights move along `moves`."""
        depth = len(self.chain.convolutions)
        entered: list[torch.Tensor | None] = []
        x: torch.Tensor | None = None  # images do not move
        for number, layer in enumerate(self.chain.convolutions):
            entered.append(x)
            step, z = steps[number], None
            for branch, passed in zip(self._branches[number], step.branches, strict=True):
                out = self._move(branch, passed, entered[-branch.back], moves)
                z = out if z is None else z.add_(out)
            assert z is not None and step.pooled is not None
            start = entered[-layer.skip] if layer.skip and layer.projection is None else None
            if start is not None:
                z = z.add_(start)
            step.tangent = z
            x = step.pooled.along(_product(step.derivative, z))
        flat = None if x is None else x.flatten(2).transpose(0, 1)
        for fc, step in zip(self._linear, steps[depth:], strict=True):
            assert step.x is not None
            tangent = step.x @ moves[f"{fc.name}.weight"].mT
            if fc.bias:
                tangent = tangent + moves[f"{fc.name}.bias"]
            if flat is not None:
                tangent = tangent + _rows(flat, self._weights[f"{fc.name}.weight"].mT)
            step.tangent = tangent
            flat = _product(step.derivative, tangent)
        assert flat is not None
        return flat

    def _move(
        self,
        branch: Branch,
        passed: Passed,
        x: torch.Tensor | None,
        moves: Mapping[str, torch.Tensor],
    ) -> torch.Tensor:
        """Tangent of what a branch adds to z, in new memory, where what enters moves along `x`."""
        u = branch.convolution.apply(passed.x, moves[f"{branch.name}.weight"])
        if x is not None:
            u = u.add_(branch.convolution.apply(x, self._weights[f"{branch.name}.weight"]))
        if branch.bias:
            u = u.add_(moves[f"{branch.name}.bias"])
        if passed.normed is None:
            return u
        if self.mode == "training":
            passed.moved = u.clone()
        norm = f"{branch.name}_norm"
        found = passed.normed.along(u).mul_(self._weights[f"{norm}.weight"])
        found = found.addcmul_(passed.normed.values, moves[f"{norm}.weight"])
        return found.add_(moves[f"{norm}.bias"])

    def _down(
        self, steps: list[Step], moves: Mapping[str, torch.Tensor], back: torch.Tensor
    ) -> torch.Tensor:
        """Gradient (K, M, C, H, W) in the images of <the outputs' tangent, dℓ/d(outputs)>."""
        depth = len(self.chain.convolutions)
        for fc, step in reversed(list(zip(self._linear, steps[depth:], strict=True))):
            delta = self._bent(fc, step, back)
            assert step.delta is not None
            back = _rows(delta, self._weights[f"{fc.name}.weight"])
            back = back + step.delta @ moves[f"{fc.name}.weight"]
        waiting = _Waiting(depth, self._imaged(back))
        for number in reversed(range(depth)):
            layer, step = self.chain.convolutions[number], steps[number]
            assert step.pooled is not None and step.delta is not None
            delta = self._bent(layer, step, step.pooled.adjoint(waiting.pop(number + 1)))
            for branch, passed in zip(self._branches[number], step.branches, strict=True):
                start, weight = number + 1 - branch.back, f"{branch.name}.weight"
                u = self._return(branch, passed, step.delta, delta, moves)
                assert passed.left is not None
                found = branch.convolution.adjoint(u, self._weights[weight])
                found = found.add_(branch.convolution.adjoint(passed.left, moves[weight]))
                waiting.add(start, found)
            if layer.skip and layer.projection is None:
                waiting.add(number + 1 - layer.skip, delta, shared=True)
        return waiting.pop(0)

    @staticmethod
    def _bent(layer: ConvLayer | LinearLayer, step: Step, back: torch.Tensor) -> torch.Tensor:
        """a'(z) ∘ back, and what a''(z) adds."""
        delta = _product(step.derivative, back)
        if layer.activation.name in KINKED:
            return delta
        assert step.tangent is not None and step.back is not None
        return delta + _second(layer.activation, step.output, step.derivative) * (
            step.tangent * step.back
        )

    def _return(
        self,
        branch: Branch,
        passed: Passed,
        known: torch.Tensor,
        delta: torch.Tensor,
        moves: Mapping[str, torch.Tensor],
    ) -> torch.Tensor:
        """Second pass's gradient in u from those in z: `known` of the first pass, and `delta`."""
        if passed.normed is None:
            return delta
        norm = f"{branch.name}_norm"
        u = delta * self._weights[f"{norm}.weight"]
        u = passed.normed.along(u.addcmul_(known, moves[f"{norm}.weight"]))
        if passed.scaled is not None and passed.moved is not None:
            u = u.add_(passed.normed.bend(passed.scaled, passed.moved))
        return u


class _Waiting:
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


def follows(chain: Chain) -> bool:
    """Whether `BranchGradients` knows all that `chain` has."""
    return all(layer.padding_mode == "zeros" for layer in chain.convolutions)


def _branches(layer: ConvLayer) -> list[Branch]:
    normed = layer.norm != "none"
    out = [Branch(layer.name, 1, Convolution(layer.shape), layer.bias, normed)]
    if layer.projection is not None:
        name, sizes = f"{layer.name}_skip", Convolution(layer.projection)
        out.append(Branch(name, layer.skip, sizes, False, normed))
    return out


def _activated(layer: ConvLayer | LinearLayer, z: torch.Tensor) -> Step:
    """Output and derivative of a layer's activation; may overwrite `z`."""
    if layer.activation.name == "relu":
        value = z = z.relu_()
    else:
        value = _activate(layer.activation, z)
    return Step(value, _derivative(layer.activation, z, value))
