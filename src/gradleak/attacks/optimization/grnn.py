"""GRNN: a generator for each gradient is trained until its image matches (Ren et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.optimization.optimization_attack import FirstOrder, Lock, Share
from gradleak.models.chain import Chain
from gradleak.runtime.progress import progress
from gradleak.settings.fields import AmountOrName, Count, Hidden

if TYPE_CHECKING:
    from torch import Tensor

    from gradleak.attacks.optimization.engine.generators import Layout
    from gradleak.attacks.optimization.engine.search_batch import Members

# Random stream of the generators, separate from that of the initial images.
STREAM = 1


class Grnn(FirstOrder):
    """Minimise d² + norm · d + wasserstein · Σ_p W1(g_p, t_p) + tv · TV(x), d = ||∇W' − ∇W||.

    The image x and, where it is unknown, the label's logits come from a generator with random
    weights (`gradleak.attacks.optimization.engine.generators`), trained by RMSprop. Gradients are
    not divided by the norm of the shared one, so the weights of all terms are the authors'. TV is
    twice the mean squared difference of neighbours, down and across, of images in 0..1. W1 is the
    1-D Wasserstein distance between the values of one parameter's gradients p. The authors'
    "Wasserstein" term is d itself: their code takes the Euclidean norm, with weight 1.

    γ and β of a lock, if they are fitted, take the same steps of RMSprop.

    The best point counts; the authors take the last one. The reported loss is the objective
    divided by the squared norm of the shared gradient. A run fails if its objective never becomes
    finite, or its relative distance d² / ||∇W||² stays at `failure_loss` or above.
    """

    only_branches = True

    method: Literal["grnn"] = "grnn"
    label: Literal["from_view", "unknown"] = "unknown"
    iterations: AmountOrName = 1000  # steps
    rate: PositiveFloat = 1e-4  # learning rate of PyTorch's RMSprop
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.99
    # GRNN's authors' code takes 1e-3 for LeNet and 1e-6 for ResNet-18, FedKL's 1e-6.
    tv: Share = 1e-3
    norm: Share = 1.0
    wasserstein: Share = 0.0
    # Length of the generator's fixed input: 128 in GRNN's authors' code, 1,024 in FedKL's.
    latent: Count = 128
    failure_loss: PositiveFloat = 0.5
    lock: Lock = "guess"
    start: Hidden[Literal["normal"]] = "normal"  # the image comes from a generator

    def applies(self, chain: Chain, mode: str = "training") -> str | None:
        """See `gradleak.attacks.base.ManyAttack`."""
        from gradleak.attacks.optimization.engine.generators import makes
        from gradleak.attacks.optimization.engine.residual_gradients import follows

        if not makes(chain.input):
            return (
                f"{chain.name} takes images of {chain.input[1]}x{chain.input[2]}, but GRNN's "
                "generator makes squares whose side is a power of two from 8 on; resize the images."
            )
        if not follows(chain):
            return (
                f"{chain.name} has replicated padding, which this search does not follow; set "
                "padding_mode: zeros."
            )
        return super().applies(chain, mode)

    def search(self, members: Members, views: Sequence[AttackerView]) -> list[Reconstruction]:
        """See `Search.search`."""
        from gradleak.attacks.optimization.engine.generators import Layout, at_once

        layout = Layout(members.network.chain.input, members.logits.shape[2], self.latent)
        size = len(members)
        if members.network.device.type == "cpu":
            size = at_once(layout, members.network.dtype)
        parts = [
            slice(first, min(first + size, part.stop))
            for part in members.parts()
            for first in range(part.start, part.stop, size)
        ]
        return self.searched(members, views, parts, partial(self._part, layout))

    def _part(
        self, layout: Layout, members: Members, views: Sequence[AttackerView]
    ) -> list[Reconstruction]:
        import torch

        from gradleak.attacks.optimization.engine import generators as engine
        from gradleak.attacks.optimization.engine.search_batch import Best

        network, batch = members.network, members.starts.shape[1]
        drawn = (engine.draw(layout, batch, (*pair, STREAM)) for pair in members.seeds.tolist())
        generators = engine.Generators(layout, drawn, device=network.device, dtype=network.dtype)
        objective = _Objective(self, members, views)
        nothing = torch.full_like(members.starts, torch.nan)
        best = Best(members.scale, nothing, torch.zeros_like(members.logits))
        scaling = None if members.scaling is None else members.scaling.clone()
        state = None if scaling is None else engine.State.of(scaling)
        trace = []
        for _ in progress(range(self.iterations), "steps"):
            pixels, logits = generators()
            found = objective(pixels, logits.detach(), scaling)
            best.offer(found.value, found.distance, pixels.detach(), logits.detach())
            trace.append(found.value)
            outputs = [pixels, found.rough]
            slopes = [found.in_pixels, torch.ones_like(found.rough)]
            if found.in_logits is not None:
                outputs.append(logits)
                slopes.append(found.in_logits)
            torch.autograd.backward(outputs, slopes)
            generators.step(self.rate, self.momentum)
            if scaling is not None and state is not None:
                engine.rmsprop_step(scaling, found.in_scaling, state, self.rate, self.momentum)
        return self.answers(members, best, objective.images(best.images), trace, "iterations done")


@dataclass(frozen=True)
class _Point:
    """Value and gradients of the objective."""

    value: Tensor  # (M,), relative to the squared norm of the shared gradient
    distance: Tensor  # relative gradient distance (M,) at the same point
    rough: Tensor  # tv · TV (M,), with a graph; not relative
    # Gradients of the rest in pixels, in unknown labels' logits, and in γ and β of locked layers
    # (M, 2 Σ O); not relative.
    in_pixels: Tensor
    in_logits: Tensor | None
    in_scaling: Tensor


class _Objective:
    """The objective of each member."""

    def __init__(self, attack: Grnn, members: Members, views: Sequence[AttackerView]) -> None:
        from gradleak.attacks.optimization.engine.distances import Regressed
        from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients

        assert isinstance(members.network, BranchGradients)
        self._network, self._members, self._tv = members.network, members, attack.tv
        low, high = np.array([(view.low, view.high) for view in views]).T
        self._low, self._width = (
            self._network.tensor(side)[:, None, None, None, None] for side in (low, high - low)
        )
        # The network scales gradients by s: it computes s g against s t, and so s² d².
        scale = members.scale
        self._square = scale.square()
        self._distance = Regressed(members.targets, attack.norm * scale, attack.wasserstein * scale)

    def images(self, pixels: Tensor) -> Tensor:
        """Map pixels in 0..1 to the network's input."""
        return self._low + self._width * pixels

    def __call__(self, pixels: Tensor, logits: Tensor, scaling: Tensor | None) -> _Point:
        """Evaluate pixels (M, K, C, H, W) in 0..1, logits, and γ and β that are fitted."""
        labels = logits if self._members.labels is None else self._members.labels
        network = self._network if scaling is None else self._network.with_scaling(scaling)
        value, down, in_logits, in_scaling = network.descend_scaling(
            self.images(pixels.detach()), labels, self._distance, self._members.scale
        )
        rough = self._tv * _variation(pixels)
        if in_logits is not None:
            in_logits = in_logits / self._square[:, None, None]
        return _Point(
            value + self._square * rough.detach(),
            self._distance.squared,
            rough,
            down * (self._width / self._square[:, None, None, None, None]),
            in_logits,
            in_scaling / self._square[:, None],
        )


def _variation(pixels: Tensor) -> Tensor:
    """Twice the mean squared difference of neighbours (M,) of pixels (M, K, C, H, W)."""
    down, across = (pixels.diff(dim=d).square().flatten(1).mean(1) for d in (3, 4))
    return 2.0 * (down + across)
