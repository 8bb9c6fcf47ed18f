"""Gradients of many members under residual networks, and of distances between them, by hand.

As `jacobian.descend` for plain chains: with the derivative r of a distance in the gradients held
fixed, ∇_x <∇_W ℓ(x; W), r> = ∇_x d/dε ℓ(x; W + εr), which takes a forward and a backward pass for
the gradients, and another pair with tangents. No graph is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.branch_layers import (
    Branch,
    Pooled,
    Step,
    Waiting,
    Weights,
)
from gradleak.attacks.optimization.engine.chain_gradients import (
    Placed,
    activate,
    check_known,
    derivative_of,
    rows_times,
    times,
)
from gradleak.attacks.optimization.engine.distances import Distance
from gradleak.attacks.optimization.engine.output import output_bend, output_gradient
from gradleak.errors import ConfigError
from gradleak.models.build import EPSILON, ChainModule
from gradleak.models.chain import Chain, LinearLayer
from gradleak.models.locks import KEY, Locked, is_private, names_of
from gradleak.models.losses import LOSSES
from gradleak.models.pools import is_common

MODES = ("training", "evaluation")
# Limit in bytes of members' gradients and activations for images computed at once on a CPU.
# Measured on one thread: from 8 images on, ResNet-18 takes 0.55 of its time with one image, and
# ResNet-101 gains up to 16 images.
IMAGES, MEMORY = 16, 2**30


class BranchGradients(Placed):
    """Gradients of a chain's loss with respect to all parameters, for M members at once.

    Unlike `ChainGradients`, it supports batch norms, projections and all pools, but no replicated
    padding. `weights` and `loss` are as there, with running statistics, if any, and for a locked
    layer its lock weights and key, or γ and β (see `opened_lock`). Gradients
    are computed of the parameters `shared`, all by default.

    In `mode` ``training`` batch norms use the statistics of each member's images, in
    ``evaluation`` the running ones, or mean 0 and variance 1 where there are none.
    """

    def __init__(
        self,
        chain: Chain,
        weights: Mapping[str, np.ndarray | Tensor],
        loss: str,
        *,
        mode: str = "training",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        shared: Collection[str] | None = None,
    ) -> None:
        check_known("loss", loss, LOSSES)
        check_known("mode", mode, MODES)
        if not follows(chain):
            raise ConfigError(f"{chain.name} has replicated padding; take it out.")
        self.chain, self.loss, self.mode = chain, loss, mode
        self.device, self.dtype = torch.device(device), dtype
        with torch.device("meta"):
            module = ChainModule(chain)
        self.shapes = {name: tuple(value.shape) for name, value in module.named_parameters()}
        self.names = tuple(name for name in self.shapes if shared is None or name in shared)
        self._branches = [
            [Branch(part, mode == "training") for part in layer.parts]
            for layer in chain.convolutions
        ]
        self._weights = {
            name: self._parameter(name, self.tensor(weights[name]))
            for name in self.shapes
            if not is_private(name)
        }
        for layer in chain.locked:
            own = (name for name in weights if name.startswith(f"{layer.name}_"))
            self._weights |= opened_lock(layer, {name: self.tensor(weights[name]) for name in own})
        for norm in [part.norm for part in chain.parts if part.normed and mode == "evaluation"]:
            like = self._weights[f"{norm}.weight"][:1]
            mean, variance = torch.zeros_like(like), torch.ones_like(like)
            if f"{norm}.running_mean" in weights:
                mean, variance = (
                    spread(self.tensor(weights[f"{norm}.{kind}"]))
                    for kind in ("running_mean", "running_var")
                )
            self._weights[f"{norm}.mean"] = mean
            self._weights[f"{norm}.inverse"] = torch.rsqrt(variance + EPSILON)

    def _parameter(self, name: str, value: Tensor) -> Tensor:
        """Reshape a parameter (...) or (M, ...) for use; channels become (M or 1, C, 1, 1)."""
        shape = self.shapes[name]
        if len(shape) == 4:
            return value.contiguous()
        rows = value.reshape(-1, *shape)
        if len(shape) == 2:
            return rows
        return rows.unsqueeze(1) if name.startswith("fc") else rows[..., None, None]

    def select(self, index: Tensor | slice) -> BranchGradients:
        """Select members `index`; a slice copies nothing."""
        weights = {}
        for name, value in self._weights.items():
            filters = len(self.shapes.get(name, ())) == 4
            own = value.ndim == 5 if filters else len(value) > 1
            weights[name] = value[index] if own else value
        return self._with(weights)

    def at_once(self, batch: int) -> int:
        """Number of members of `batch` images to compute at once; all on an accelerator."""
        if self.device.type != "cpu":
            return sys.maxsize
        # Gradients, their targets and the layers' outputs.
        shapes = [part.shape for part in self.chain.parts]
        outputs = sum(shape.filters * shape.positions for shape in shapes)
        numbers = 2 * self.chain.parameters + 4 * batch * outputs
        fitting = MEMORY // (numbers * self.dtype.itemsize)
        return max(1, min(-(-IMAGES // batch), fitting))

    @torch.no_grad()
    def __call__(self, images: Tensor, labels: Tensor, scale: Tensor | None = None) -> list[Tensor]:
        """Return gradients (M, ...) in the order of `names`, without a graph."""
        steps = self._forward(images)
        return self._listed(self._backward(steps, labels, scale))

    @torch.no_grad()
    def descend_scaling(
        self, images: Tensor, labels: Tensor, distance: Distance, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Return distances (M,) and their gradients, written out.

        They are those in images (M, K, C, H, W), in dummy logits, if any, and in γ and β of locked
        layers (M, 2 Σ O). Arguments are those of `ChainGradients`, and a `Distance`.
        """
        steps = self._forward(images)
        found = self._backward(steps, labels, scale)
        value, residuals, factor = distance(self._listed(found))
        moves = self._moves(dict(zip(self.names, residuals, strict=True)))
        moved = self._along(steps, moves)
        bend, in_logits = output_bend(self.loss, steps[-1].output, labels, scale, moved)
        down = self._down(steps, moves, bend).transpose(0, 1)
        if in_logits is not None:
            in_logits = in_logits * factor[:, None, None]
        every = [passed.scaling for step in steps for passed in step.branches]
        parts = [part for part in every if part is not None]
        in_scaling = torch.cat(parts, 1) if parts else factor.new_zeros((len(factor), 0))
        down = down * factor[:, None, None, None, None]
        return value, down, in_logits, in_scaling * factor[:, None]

    def with_scaling(self, scaling: Tensor) -> BranchGradients:
        """Replace γ and β by each member's own (M, 2 Σ O), independent of the key."""
        sizes = [self._weights[name].shape[1] for name in self._scaled]
        parts = zip(self._scaled, scaling.split(sizes, 1), strict=True)
        return self._with(self._weights | {name: spread(part) for name, part in parts})

    @property
    def _scaled(self) -> list[str]:
        return [name for layer in self.chain.locked for name in norm_of(layer)]

    def _moves(self, residuals: Weights) -> dict[str, Tensor]:
        """Tangents of weights along residuals; weights that are not compared stay."""
        public = [name for name in self.shapes if not is_private(name)]
        out = {
            name: self._parameter(name, residuals[name])
            if name in residuals
            else torch.zeros_like(self._weights[name])
            for name in public
        }
        for layer in self.chain.locked:
            out |= lock_moves(layer, residuals, self._weights)
        return out

    def _listed(self, found: Weights) -> list[Tensor]:
        known = dict(found)
        for layer in self.chain.locked:
            if any(name.startswith(f"{layer.name}_lock") for name in self.names):
                known |= lock_gradients(layer, found, self._weights)
        return [known[name] for name in self.names]

    def _forward(self, images: Tensor) -> list[Step]:
        steps: list[Step] = []
        x = images.transpose(0, 1).contiguous()
        entered: list[Tensor] = []
        for layer, several in zip(self.chain.convolutions, self._branches, strict=True):
            entered.append(x)
            found = [branch.enter(entered[-branch.part.back], self._weights) for branch in several]
            z = found[0][1]
            for _, out in found[1:]:
                z = z.add_(out)
            if layer.skip and layer.projection is None:
                z = z.add_(entered[-layer.skip])
            step = Step.of(layer, z)
            step.branches = [passed for passed, _ in found]
            step.pooled = Pooled.of(step.output, layer.pool)
            x = step.pooled.values
            steps.append(step)
        x = x.flatten(2).transpose(0, 1)
        for fc in self._linear:
            z = rows_times(x, self._weights[f"{fc.name}.weight"].mT)
            if fc.bias:
                z = z + self._weights[f"{fc.name}.bias"]
            steps.append(Step.of(fc, z))
            steps[-1].x, x = x, steps[-1].output
        return steps

    @property
    def _linear(self) -> list[LinearLayer]:
        return [layer for layer in self.chain.layers if isinstance(layer, LinearLayer)]

    def _backward(
        self, steps: list[Step], labels: Tensor, scale: Tensor | None
    ) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        back = output_gradient(self.loss, steps[-1].output, labels, scale)
        depth = len(self.chain.convolutions)
        for fc, step in reversed(list(zip(self._linear, steps[depth:], strict=True))):
            step.back, step.delta = back, times(step.derivative, back)
            out[f"{fc.name}.weight"] = step.delta.mT @ step.x
            if fc.bias:
                out[f"{fc.name}.bias"] = step.delta.sum(1)
            back = rows_times(step.delta, self._weights[f"{fc.name}.weight"])
        waiting = Waiting(depth, self._imaged(back))
        for number in reversed(range(depth)):
            layer, step = self.chain.convolutions[number], steps[number]
            step.back = step.pooled.adjoint(waiting.pop(number + 1))
            step.delta = times(step.derivative, step.back)
            for branch, passed in zip(self._branches[number], step.branches, strict=True):
                left = branch.leave(passed, step.delta, self._weights, out)
                start = number + 1 - branch.part.back
                if start:
                    weight = self._weights[f"{branch.part.name}.weight"]
                    waiting.add(start, branch.convolution.adjoint(left, weight))
            if layer.skip and layer.projection is None:
                waiting.add(number + 1 - layer.skip, step.delta, shared=True)
        return out

    def _imaged(self, back: Tensor) -> Tensor:
        """Reshape the first fully connected layer's input gradient (M, K, n) to (K, M, C, H, W)."""
        before = self.chain.convolutions
        size = (before[-1].shape.filters, *before[-1].grid) if before else self.chain.input
        return back.transpose(0, 1).unflatten(2, size)

    def _along(self, steps: list[Step], moves: Weights) -> Tensor:
        """Tangent (M, K, m) of the outputs for tangents `moves` of the weights."""
        depth = len(self.chain.convolutions)
        entered: list[Tensor | None] = []
        x: Tensor | None = None  # images do not move
        for number, layer in enumerate(self.chain.convolutions):
            entered.append(x)
            step, z = steps[number], None
            for branch, passed in zip(self._branches[number], step.branches, strict=True):
                out = branch.move(passed, entered[-branch.part.back], self._weights, moves)
                z = out if z is None else z.add_(out)
            assert z is not None
            start = entered[-layer.skip] if layer.skip and layer.projection is None else None
            if start is not None:
                z = z.add_(start)
            step.tangent = z
            x = step.pooled.along(times(step.derivative, z))
        flat = None if x is None else x.flatten(2).transpose(0, 1)
        for fc, step in zip(self._linear, steps[depth:], strict=True):
            tangent = step.x @ moves[f"{fc.name}.weight"].mT
            if fc.bias:
                tangent = tangent + moves[f"{fc.name}.bias"]
            if flat is not None:
                tangent = tangent + rows_times(flat, self._weights[f"{fc.name}.weight"].mT)
            step.tangent = tangent
            flat = times(step.derivative, tangent)
        assert flat is not None
        return flat

    def _down(self, steps: list[Step], moves: Weights, back: Tensor) -> Tensor:
        """Gradient (K, M, C, H, W) in the images of <the outputs' tangent, dℓ/d(outputs)>."""
        depth = len(self.chain.convolutions)
        for fc, step in reversed(list(zip(self._linear, steps[depth:], strict=True))):
            delta = step.bent(fc, back)
            back = rows_times(delta, self._weights[f"{fc.name}.weight"])
            back = back + step.delta @ moves[f"{fc.name}.weight"]
        waiting = Waiting(depth, self._imaged(back))
        for number in reversed(range(depth)):
            layer, step = self.chain.convolutions[number], steps[number]
            delta = step.bent(layer, step.pooled.adjoint(waiting.pop(number + 1)))
            for branch, passed in zip(self._branches[number], step.branches, strict=True):
                found = branch.go_back(passed, step.delta, delta, self._weights, moves)
                waiting.add(number + 1 - branch.part.back, found)
            if layer.skip and layer.projection is None:
                waiting.add(number + 1 - layer.skip, delta, shared=True)
        return waiting.pop(0)


def norm_of(layer: Locked) -> list[str]:
    """Names under which γ and β of a convolution are stored."""
    return [f"{layer.name}_norm.{kind}" for kind in names_of(layer.name)]


def opened_lock(layer: Locked, weights: Weights) -> dict[str, Tensor]:
    """Return γ and β for a batch norm (M or 1, O, 1, 1), slopes a'(p) (M or 1, O), and the key.

    γ = a(p), p = W k + b, so ∂ℓ/∂b = ∂ℓ/∂γ ∘ a'(p) and ∂ℓ/∂W = ∂ℓ/∂b kᵀ (FedKL eqs. 34, 35, where
    a is the identity), and the tangent of γ is a'(p) ∘ (Ẇ k + ḃ). β likewise.
    `weights` holds lock weights and key by name, each shared or with a leading dimension of
    members. Alternatively it holds γ and β, (O,) or (M, O), named by `norm_of`, and no key.
    """
    if norm_of(layer)[0] in weights:
        return {name: spread(weights[name]) for name in norm_of(layer)}
    key = weights[f"{layer.name}{KEY}"].reshape(-1, layer.lock.key)
    out = {f"{layer.name}{KEY}": key}
    for part, name in zip(norm_of(layer), names_of(layer.name).values(), strict=True):
        matrix = weights[f"{name}.weight"].reshape(-1, layer.filters, layer.lock.key)
        bias = weights[f"{name}.bias"].reshape(-1, layer.filters)
        before = (matrix @ key[..., None]).squeeze(2) + bias
        value = activate(layer.lock.activation, before)
        slope = derivative_of(layer.lock.activation, before, value)
        out[part] = spread(value)
        out[f"{name}.slope"] = torch.ones_like(value) if slope is None else slope
    return out


def spread(value: Tensor) -> Tensor:
    """Reshape (O,) or (M, O) to scale images: (M or 1, O, 1, 1)."""
    return value.reshape(-1, value.shape[-1], 1, 1)


def lock_gradients(layer: Locked, found: Weights, weights: Weights) -> dict[str, Tensor]:
    """Gradients of a lock's parameters from those (M, O) in γ and β; `weights` of `opened_lock`."""
    key, out = weights[f"{layer.name}{KEY}"], {}
    for part, name in zip(norm_of(layer), names_of(layer.name).values(), strict=True):
        bias = found[part] * weights[f"{name}.slope"]
        out[f"{name}.bias"] = bias
        out[f"{name}.weight"] = bias[:, :, None] * key[:, None, :]
    return out


def lock_moves(layer: Locked, moving: Weights, weights: Weights) -> dict[str, Tensor]:
    """Tangents of γ and β (M, O, 1, 1) for tangents of the lock's parameters; 0 by default."""
    out = {}
    for part, name in zip(norm_of(layer), names_of(layer.name).values(), strict=True):
        if f"{name}.weight" not in moving:
            out[part] = torch.zeros_like(weights[part])
            continue
        matrix, bias = moving[f"{name}.weight"], moving[f"{name}.bias"]
        move = (matrix @ weights[f"{layer.name}{KEY}"][..., None]).squeeze(2) + bias
        out[part] = spread(move * weights[f"{name}.slope"])
    return out


def is_branched(chain: Chain) -> bool:
    """True if `ChainGradients` does not support `chain`: batch norm, projection, other pools."""
    return any(
        layer.normed or layer.projection is not None or not is_common(layer.pool)
        for layer in chain.convolutions
    )


def follows(chain: Chain) -> bool:
    """True if `BranchGradients` supports all of `chain`."""
    return all(layer.padding_mode == "zeros" for layer in chain.convolutions)
