"""Inverting Gradients on any PyTorch network, by second-order automatic differentiation.

Only the gradients are computed otherwise than in `gradleak.attacks.optimization.inverting`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.optimization.engine.chain_gradients import Placed
from gradleak.attacks.optimization.engine.search_batch import Members
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.client.capture import DTYPES, mean_loss, pick_device
from gradleak.client.gradient_checks import check_gradient
from gradleak.errors import NumericsError
from gradleak.reading.gradients import passing

# Norms whose forward pass depends on the mode. The other such layers are dropout, which no attacker
# can reproduce.
NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


@dataclass(frozen=True)
class ModuleView:
    """An attacker's view of one gradient of a network that runs as a module."""

    module: nn.Module  # with the weights sent by the server
    known: AttackerView  # only name and size of its chain are used
    # By parameter, optionally: mask of the values compared, 0 or 1, same shape.
    compared: Mapping[str, np.ndarray] = field(default_factory=dict)


def invert(
    attack: InvertingGradients, views: Sequence[ModuleView], seeds: Sequence[int]
) -> list[Reconstruction | NumericsError]:
    """Attack each view separately; the attack has ``starts`` = 1 and ``start`` normal."""
    out: list[Reconstruction | NumericsError] = []
    for view, seed in zip(views, seeds, strict=True):
        try:
            out.append(_one(attack, view, seed))
        except NumericsError as error:
            out.append(error)
    return out


def _one(attack: InvertingGradients, view: ModuleView, seed: int) -> Reconstruction:
    known, labels = view.known, view.known.labels or ()
    check_gradient(known.chain, known.gradients)
    network = ModuleGradients(view, DTYPES[attack.precision], pick_device(attack.device))
    start = np.random.default_rng((seed, 0)).standard_normal((len(labels), *known.chain.input))
    norm = np.sqrt(sum(np.sum(v.astype(np.float64) ** 2) for v in known.gradients.values()))
    shared = {name: value.astype(np.float64) / norm for name, value in known.gradients.items()}
    targets, scale = network.targets([shared]), network.tensor(np.array([1.0 / norm]))
    given = torch.tensor([labels], device=network.device), network.tensor(start[None])
    rest = torch.empty(0), torch.tensor([(seed, 0)])
    members = ModuleMembers(network, targets, scale, *given, *rest)  # type: ignore[arg-type]
    with network.running():
        (found,) = attack.search(members, [known])
    return found


class ModuleMembers(Members):
    """One optimisation-based attack on a network that is not a chain."""

    def select(self, index: torch.Tensor | slice) -> ModuleMembers:
        """Return itself: there is one member."""
        return self

    def parts(self) -> list[slice]:
        """See `Members`."""
        return [slice(0, 1)]


class ModuleGradients(Placed):
    """Gradients of one network's mean loss, differentiable with respect to the images."""

    def __init__(self, view: ModuleView, dtype: torch.dtype, device: torch.device) -> None:
        self.device, self.dtype, self.view = device, dtype, view
        self.chain = view.known.chain  # has no layers
        like = next(view.module.parameters())
        self._home = like.dtype, like.device
        self._named = dict(view.module.named_parameters())
        self.names = tuple(self._named)
        self._compared = {name: self.tensor(value) for name, value in view.compared.items()}

    def __call__(
        self, x: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor
    ) -> list[torch.Tensor]:
        """Gradients (1, ...) of images (1, K, C, H, W) with labels (1, K), times `scale` (1,)."""
        # Copied, since a network may begin with an in-place operation.
        output, own = self.view.module(x[0].clone()), list(self._named.values())
        value = scale[0] * mean_loss(self.view.known.loss, output, labels[0])
        found = torch.autograd.grad(value, own, create_graph=True, allow_unused=True)
        all_ = (torch.zeros_like(p) if g is None else g for p, g in zip(own, found, strict=True))
        masks = (self._compared.get(name, 1.0) for name in self.names)
        return [(g * mask)[None] for g, mask in zip(all_, masks, strict=True)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the network as the client did, but without dropout, and restore it.

        Flash attention and the fast path of attention have no second derivative.
        """
        module, fast = self.view.module, torch.backends.mha.get_fastpath_enabled()
        with passing(module, "evaluation"), sdpa_kernel(SDPBackend.MATH):
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
