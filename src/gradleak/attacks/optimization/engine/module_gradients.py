"""Gradients and updates of any PyTorch network, differentiable with respect to its images.

By automatic differentiation: the batched passes of `chain_gradients` and `residual_gradients`,
written by hand, are several times faster, but only for the layers that they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from gradleak.attacks.optimization.engine.chain_gradients import Placed
from gradleak.attacks.optimization.engine.norm_statistics import Statistics, Watch
from gradleak.attacks.optimization.engine.search_batch import Members
from gradleak.client.capture import mean_loss
from gradleak.client.local_training import Recipe, local_steps
from gradleak.reading.gradients import passing

if TYPE_CHECKING:
    from gradleak.attacks.base import AttackerView

# Norms whose forward pass depends on the mode. The other such layers are dropout, which no attacker
# can reproduce.
NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)

SMOOTH = {nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus}
KINKED = {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.Hardtanh, nn.Hardswish, nn.MaxPool2d}
KINKED |= {nn.Hardsigmoid}
# Change of a surrogate's α when its variable changes by 1. A search moves pixels by 0.1 a step.
PACE = 0.02


def _hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    found = functional.relu6(x + 3.0) / 6.0
    return x.copy_(found) if inplace else found


# Functions that PyTorch differentiates once, as operations that it differentiates twice.
TWICE: dict[Any, Callable[..., Tensor]] = {functional.hardsigmoid: _hardsigmoid}


class Twice(TorchFunctionMode):
    """Runs the functions of `TWICE` as operations with a second derivative."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        return TWICE.get(func, func)(*args, **(kwargs or {}))


@dataclass(frozen=True)
class ModuleView:
    """An attacker's view of one gradient, or update, of a network that runs as a module."""

    module: nn.Module  # with the weights sent by the server
    known: AttackerView  # only name and size of its chain are used
    # By parameter, optionally: mask of the values compared, 0 or 1, same shape.
    compared: Mapping[str, np.ndarray] = field(default_factory=dict)
    # How the client trained, if `known.gradients` are weights before less weights after.
    recipe: Recipe | None = None
    # By parameter: the client's weights after its training, for the surrogate model extension.
    after: Mapping[str, np.ndarray] | None = None
    # Of the client's batch, as far as the attacker can tell them; empty: unknown.
    statistics: Statistics = field(default_factory=dict)


class ModuleMembers(Members):
    """One optimisation-based attack on a network that is not a chain."""

    def select(self, index: Tensor | slice) -> ModuleMembers:
        """Return itself: there is one member."""
        return self

    def parts(self) -> list[slice]:
        """See `Members`."""
        return [slice(0, 1)]


class ModuleGradients(Placed):
    """The gradient or update that a client shares, as a differentiable function of its images.

    A gradient of the mean loss; with a `ModuleView.recipe`, weights before less weights after the
    client's local steps, which are simulated. With `ModuleView.after`, the gradient at a point
    between both, w = α·before + (1 − α)·after, stands for the steps between them (the surrogate
    model extension, Zhu et al. 2023).
    """

    def __init__(self, view: ModuleView, dtype: torch.dtype, device: torch.device) -> None:
        self.device, self.dtype, self.view = device, dtype, view
        self.chain = view.known.chain  # has no layers
        like = next(view.module.parameters())
        self._home = like.dtype, like.device
        self._named = dict(view.module.named_parameters())
        self.names = tuple(name for name in self._named if name in view.known.gradients)
        self._compared = {name: self.tensor(value) for name, value in view.compared.items()}
        after = view.after or {}
        self._after = {name: self.tensor(value) for name, value in after.items()}
        self._watch = Watch(
            {n: (self.tensor(m), self.tensor(v)) for n, (m, v) in view.statistics.items()}
        )

    def __call__(
        self, x: Tensor, labels: Tensor, scale: Tensor, moved: Tensor | None = None
    ) -> list[Tensor]:
        """Values shared (1, ...) for images (1, K, C, H, W) and labels (1, K), times `scale` (1,).

        `moved` (1, 1) places the surrogate: α = 1/2 + `PACE`·moved, kept in [0, 1].
        """
        self._watch.begin()
        before: dict[str, Tensor] = dict(self._named)
        if self.view.recipe is not None and moved is None:
            own = (self.view.module, before, x[0], labels[0], self.view.recipe)
            after = local_steps(*own, loss=self.view.known.loss, differentiable=True)
            found = [before[name] - after[name] for name in self.names]
        else:
            if moved is not None:
                share = (0.5 + PACE * moved[0, 0]).clamp(0.0, 1.0)
                before = {
                    name: share * value.detach() + (1.0 - share) * self._after[name]
                    for name, value in before.items()
                }
            found = self._gradient(before, x[0], labels[0])
        scaled = zip(self.names, (scale[0] * g for g in found), strict=True)
        masks = self._compared
        return [(g * masks[name] if name in masks else g)[None] for name, g in scaled]

    @property
    def apart(self) -> Tensor:
        """Distance of the norms' inputs in the last call from known statistics (`Watch`)."""
        return self._watch.apart()

    @property
    def is_kinked(self) -> bool:
        """True unless its modules are known to be smooth; functions in its pass are not seen."""
        parts = [type(part) for part in self.view.module.modules()]
        return any(part in KINKED for part in parts) or not any(part in SMOOTH for part in parts)

    def _gradient(self, weights: dict[str, Tensor], x: Tensor, labels: Tensor) -> list[Tensor]:
        # Copied, since a network may begin with an in-place operation.
        output = functional_call(self.view.module, weights, (x.clone(),))
        value = mean_loss(self.view.known.loss, output, labels)
        own = [weights[name] for name in self.names]
        return [
            *torch.autograd.grad(
                value, own, create_graph=True, allow_unused=True, materialize_grads=True
            )
        ]

    def descend(
        self, x: Tensor, labels: Tensor, targets: Sequence[Tensor], scale: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        """Return DLG's distance Σ ||g − target||² (1,) and its gradient in the images."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            found = self(x, labels, scale)
            pairs = zip(found, targets, strict=True)
            value = torch.stack([(g - t).square().sum() for g, t in pairs]).sum()
            (slope,) = torch.autograd.grad(value, x)
        return value.detach()[None], slope, None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the network as the client did, but without dropout, and restore it.

        Flash attention, the fast path of attention and cuDNN's recurrent layers have no second
        derivative, nor have the functions of `TWICE`.
        """
        module, fast = self.view.module, torch.backends.mha.get_fastpath_enabled()
        looking, cudnn = self._watch.watching(module), torch.backends.cudnn
        recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
        plain = cudnn.flags(enabled=cudnn.enabled and not recurrent)
        with passing(module, "evaluation"), sdpa_kernel(SDPBackend.MATH), looking, Twice(), plain:
            for part in module.modules():
                if isinstance(part, NORMS):
                    part.train(self.view.known.mode == "training")
            torch.backends.mha.set_fastpath_enabled(False)
            module.to(self.device, self.dtype)
            try:
                yield
            finally:
                torch.backends.mha.set_fastpath_enabled(fast)
                module.to(self._home[1], self._home[0])


class ModulePoint:
    """A network at one batch of images: what it shares, and products with the derivative J."""

    def __init__(self, network: ModuleGradients, x: Tensor, labels: Tensor, scale: Tensor) -> None:
        with torch.enable_grad():
            self.images = x.detach().requires_grad_()
            self._found = network(self.images, labels, scale)
            self._dual = [torch.zeros_like(g, requires_grad=True) for g in self._found]
            # Linear in the dual variables, so that its own derivative is J (twice backward).
            (self._pulled,) = torch.autograd.grad(
                self._found, self.images, self._dual, create_graph=True
            )

    def gradients(self) -> list[Tensor]:
        """Return what the client would share, (1, ...) each."""
        return [g.detach() for g in self._found]

    def forward(self, v: Tensor) -> list[Tensor]:
        """J v, (1, ...) each."""
        return [
            *torch.autograd.grad(
                self._pulled, self._dual, v, retain_graph=True, materialize_grads=True
            )
        ]

    def adjoint(self, u: Sequence[Tensor]) -> Tensor:
        """Jᵀ u, of the images' shape."""
        (found,) = torch.autograd.grad(self._found, self.images, u, retain_graph=True)
        return found


class ModuleProblem:
    """Residuals for `gauss_newton_solver.Damped`, by automatic differentiation; see its Problem."""

    precondition = False

    def __init__(self, member: Members) -> None:
        network, labels = member.network, member.labels
        assert isinstance(network, ModuleGradients) and labels is not None
        self.network: ModuleGradients = network
        self._labels: Tensor = labels
        self._member: Members = member
        self.weights = [1.0] * len(member.targets)

    def linearise(self, x: Tensor) -> ModulePoint:
        """Linearise the network around images x (1, K, C, H, W)."""
        return ModulePoint(self.network, x, self._labels, self._member.scale)

    def residual(self, at: ModulePoint) -> list[Tensor]:
        """Return r(x)."""
        return [g - t for g, t in zip(at.gradients(), self._member.targets, strict=True)]

    def forward(self, at: ModulePoint, v: Tensor) -> list[Tensor]:
        """Return J v."""
        return at.forward(v)

    def adjoint(self, at: ModulePoint, u: Sequence[Tensor]) -> Tensor:
        """Return Jᵀ u."""
        return at.adjoint(u)

    def distance(self, x: Tensor) -> float:
        """Return ||r||²: DLG's distance."""
        value, _, _ = self.network.descend(
            x, self._labels, self._member.targets, self._member.scale
        )
        return float(value)
