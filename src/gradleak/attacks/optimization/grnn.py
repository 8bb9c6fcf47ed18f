"""GRNN: a generator for each gradient is trained until its image matches (Ren et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.optimization.first_order import FirstOrder
from gradleak.attacks.optimization.optimization_attack import Lock, Share, variation
from gradleak.models.chain import Chain
from gradleak.runtime.progress import progress
from gradleak.settings.fields import AmountOrName, Count, Hidden

if TYPE_CHECKING:
    from torch import Tensor

    from gradleak.attacks.optimization.engine.distances import Regressed
    from gradleak.attacks.optimization.engine.generators import Fitted, Generators, Layout
    from gradleak.attacks.optimization.engine.replay import Replayed
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

    def _layout(self, members: Members) -> Layout:
        from gradleak.attacks.optimization.engine.generators import Layout

        return Layout(members.network.chain.input, members.logits.shape[2], self.latent)

    def _parts(self, members: Members) -> list[slice]:
        """As in `FirstOrder`, with no more generators than memory holds."""
        from gradleak.attacks.optimization.engine.generators import at_once

        size = len(members)
        if members.network.device.type == "cpu":
            size = at_once(self._layout(members), members.network.dtype)
        return [
            slice(first, min(first + size, part.stop))
            for part in members.parts()
            for first in range(part.start, part.stop, size)
        ]

    def _search(self, members: Members, views: Sequence[AttackerView]) -> list[Reconstruction]:
        import torch

        from gradleak.attacks.optimization.engine import generators as engine
        from gradleak.attacks.optimization.engine.course import Course
        from gradleak.attacks.optimization.engine.search_batch import Best

        everyone, layout = members, self._layout(members)
        seeds = [(*pair, STREAM) for pair in members.seeds.tolist()]
        drawn = (engine.draw(layout, members.starts.shape[1], seed) for seed in seeds)
        place = members.network.device, members.network.dtype
        generators = engine.Generators(layout, drawn, device=place[0], dtype=place[1])
        lows, widths = _sides(members, views)
        nothing = torch.full_like(members.starts, torch.nan)
        best = Best(members.scale, nothing, torch.zeros_like(members.logits))
        lock = None if members.scaling is None else engine.Fitted(members.scaling)
        course = Course(best, [self.rate] * self.iterations, self.patience_for(members))
        low, width = lows, widths
        moved = {"generators": generators} | ({} if lock is None else {"lock": lock})
        if self.resume(course, moved) and len(course.ids):
            left = course.ids
            members, low, width = members.select(left), low[left], width[left]
        step = self._step(members, generators, lock, low, width)
        for _ in progress(range(course.taken, self.iterations if len(course.ids) else 0), "steps"):
            value, squared, pixels, logits = step(place[0])
            assert value is not None and squared is not None
            assert pixels is not None and logits is not None
            best.offer(value, squared, pixels, logits)
            rows = course.tell(value, "iterations done")
            if not len(course.ids):
                break
            if rows is not None:
                for moving in moved.values():
                    moving.keep(rows)
                members, low, width = members.select(rows), low[rows], width[rows]
                step = self._step(members, generators, lock, low, width)
            self.note(course, moved)
        self.note(course, moved, last=True)
        return self.answers(everyone, course, lows + widths * course.final("images"))

    def _step(
        self,
        members: Members,
        generators: Generators,
        lock: Fitted | None,
        low: Tensor,
        width: Tensor,
    ) -> Replayed:
        """A step of all generators, and of γ and β of a lock if they are fitted.

        It returns objectives (M,), squared distances (M,), pixels in 0..1 and logits.
        """
        import torch

        from gradleak.attacks.optimization.engine.replay import Replayed
        from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients

        square, distance = self._compared(members)
        network = members.network
        assert isinstance(network, BranchGradients)

        def move() -> tuple[Tensor | None, ...]:
            """Take the step in place, so that it can be replayed."""
            pixels, logits = generators()
            labels = logits.detach() if members.labels is None else members.labels
            known = network if lock is None else network.with_scaling(lock.value)
            value, down, in_logits, in_scaling = known.descend_scaling(
                low + width * pixels.detach(), labels, distance, members.scale
            )
            rough = self.tv * (2.0 * variation(pixels, torch.square))
            outputs = [pixels, rough]
            slopes = [down * (width / square[:, None, None, None, None]), torch.ones_like(rough)]
            if in_logits is not None:
                outputs.append(logits)
                slopes.append(in_logits / square[:, None, None])
            torch.autograd.backward(outputs, slopes)
            generators.step(self.rate, self.momentum)
            if lock is not None:
                lock.step(in_scaling / square[:, None], self.rate, self.momentum)
            value = value + square * rough.detach()
            return value, distance.squared, pixels.detach(), logits.detach()

        return Replayed(move)

    def _compared(self, members: Members) -> tuple[Tensor, Regressed]:
        """Squares of scales, and the distance from members' gradients.

        The network scales gradients by s: it computes s g against s t, and so s² d².
        """
        from gradleak.attacks.optimization.engine.distances import Regressed

        scale = members.scale
        return scale.square(), Regressed(
            members.targets, self.norm * scale, self.wasserstein * scale
        )


def _sides(members: Members, views: Sequence[AttackerView]) -> tuple[Tensor, Tensor]:
    """Least values and widths (M, 1, 1, 1, 1) of the ranges of inputs."""
    sides = np.array([(view.low, view.high - view.low) for view in views]).T
    low, width = (members.network.tensor(side)[:, None, None, None, None] for side in sides)
    return low, width
