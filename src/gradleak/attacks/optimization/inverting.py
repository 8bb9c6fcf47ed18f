"""Inverting Gradients: cosine distance, total variation, Adam on signs (Geiping et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import PositiveFloat

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.optimization.first_order import FirstOrder
from gradleak.attacks.optimization.optimization_attack import Lock, Share, variation
from gradleak.models.chain import Chain
from gradleak.runtime.progress import progress
from gradleak.settings.fields import AmountOrName, Hidden

if TYPE_CHECKING:
    from torch import Tensor

    from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients
    from gradleak.attacks.optimization.engine.free_contrast import Scope
    from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients
    from gradleak.attacks.optimization.engine.search_batch import Members

    # Distance (M,), objective (M,), and its gradients in images (M, K, C, H, W) and in a lock's γ
    # and β, if these are fitted.
    Value = tuple[Tensor, Tensor, Tensor, Tensor | None]
    Objective = Callable[[Tensor, Tensor | None], Value]

# The learning rate falls to a tenth at these fractions of the iterations.
MILESTONES = (3 / 8, 5 / 8, 7 / 8)
FACTOR = 0.1
# Settings of ours; docs/rgap.md says how κ was chosen.
BALANCED: Mapping[str, Any] = MappingProxyType({"balance": 0.5, "rate": 0.1, "start": "gray"})
ASSUMED = "contrast is that of natural images, since the gradient does not tell it"
# Decay of Adam's second moments where gradients are balanced, and thus about as long at each step.
QUICK = 0.9


class CosineSearch(FirstOrder):
    """Minimise 1 − <∇W', ∇W> / (||∇W'|| ||∇W||) + tv · TV(x) over images in the input range.

    TV is anisotropic: mean absolute differences of neighbours, down and across. Adam uses the sign
    of the gradient, each step is projected to the range, and the best point counts. γ and β of a
    lock, if they are fitted, take the same steps without bounds. A run fails if its distance never
    becomes finite or stays at `failure_loss` or above; at 1 its gradient has no component along
    the shared one.

    `balance`, κ, is no part of the paper. Adam then goes along ∇d / ||∇d|| + κ ∇TV / ||∇TV||, at a
    rate that falls to 0 by half a cosine, and the last finite point counts. With κ < 1 the images
    follow the shared gradient where it says something, and are smooth where it does not. One κ does
    for networks whose distances are orders of magnitude apart, which no one `tv` fits. Where the
    gradient does not tell the images' contrast (`free_contrast`), total variation would take it to
    0: it is then held at that of natural images, the direction lacks its part along it, and half of
    κ counts.
    """

    distance = "cosine distance of gradients"

    iterations: AmountOrName = 1000  # steps; the authors take 24,000 or 4,800
    rate: PositiveFloat = 0.1  # Adam's initial learning rate
    tv: Share = 1e-4  # weight of total variation
    balance: Hidden[Share | None] = None  # instead of `tv`
    # Weight of known statistics of the client's norms, for networks that run as modules.
    statistics: Hidden[Share] = 0.0
    failure_loss: PositiveFloat = 1.0

    def ignored(self, chain: Chain) -> tuple[str, ...]:
        """Parameters of the network whose gradients are not compared."""
        return ()

    def _search(self, members: Members, views: Sequence[AttackerView]) -> list[Reconstruction]:
        import torch

        from gradleak.attacks.optimization.engine.course import Course, Moving
        from gradleak.attacks.optimization.engine.free_contrast import CONTRAST, contrast
        from gradleak.attacks.optimization.engine.search_batch import Best

        everyone, image = members, Moving(members.starts)
        scaling = None if members.scaling is None else Moving(members.scaling)
        bounds = np.array([(view.low, view.high) for view in views])
        low, high = (members.network.tensor(side)[:, None, None, None, None] for side in bounds.T)
        objective, scope = self._objective(members), self._free(members.network, views[0])
        last = self.balance is not None
        best = Best(members.scale, image.value.clone(), members.logits, last=last)
        course = Course(best, self._rates(), self.patience_for(members), self._lowered())
        spent = f"evaluations spent{'' if scope is None else f'; {ASSUMED}'}"
        moved = {"image": image} | ({} if scaling is None else {"scaling": scaling})
        if self.resume(course, moved) and len(course.ids):
            left = course.ids
            members, low, high = members.select(left), low[left], high[left]
            objective = self._objective(members)
        for _ in progress(range(course.taken, self.iterations if len(course.ids) else 0), "steps"):
            x = image.value.requires_grad_()
            cosine, value, slope, in_scaling = objective(
                x, None if scaling is None else scaling.value
            )
            best.offer(value, cosine, x.detach())
            along, memory = self._along(x, slope, scope)
            with torch.no_grad():
                image.step(along, course.rate, memory)
                if scope is not None:
                    apart, size = contrast(x, scope)
                    x.add_(apart * (CONTRAST * (high - low) / size.clamp(min=1e-30) - 1.0))
                x.copy_(torch.minimum(torch.maximum(x, low), high))
                if scaling is not None and in_scaling is not None:
                    scaling.step(in_scaling.sign(), course.rate)
            rows = course.tell(value, spent)
            if not len(course.ids):
                break
            if rows is not None:
                for moving in moved.values():
                    moving.keep(rows)
                members, low, high = members.select(rows), low[rows], high[rows]
                objective = self._objective(members)
            self.note(course, moved)
        self.note(course, moved, last=True)
        return self.answers(everyone, course, course.final("images"))

    def contradiction(self) -> str | None:
        """See `gradleak.attacks.base.Entry`."""
        if self.patience and self.balance is not None:
            return "patience: the rate of balanced steps falls to 0, so they all count; take it out"
        return super().contradiction()

    def _lowered(self) -> list[int]:
        """Steps at which the rate falls, without a balance."""
        return [int(share * self.iterations) for share in MILESTONES]

    def _rates(self) -> list[float]:
        """Learning rate of each step."""
        if self.balance is not None:
            turns = np.arange(self.iterations) / self.iterations
            return list(self.rate * (1.0 + np.cos(np.pi * turns)) / 2.0)
        rate, out = self.rate, []
        lowered = self._lowered()
        for step in range(self.iterations):
            rate *= FACTOR ** lowered.count(step)
            out.append(rate)
        return out

    def _free(self, network: ChainGradients | BranchGradients, view: AttackerView) -> Scope | None:
        """Images whose contrast the gradient does not tell, where it matters."""
        from gradleak.attacks.optimization.engine.free_contrast import free_contrast
        from gradleak.attacks.optimization.engine.module_gradients import ModuleGradients

        if self.balance is None:
            return None
        if not isinstance(network, ModuleGradients):
            return free_contrast(network.chain, network.chain.input, view.mode)
        if self.statistics and network.view.statistics:
            return None
        return free_contrast(network.view.module, network.chain.input, view.mode)

    def _along(self, x: Tensor, slope: Tensor, scope: Scope | None) -> tuple[Tensor, float]:
        """Direction of a step, by the objective's gradient, and decay of Adam's second moments."""
        import torch

        from gradleak.attacks.optimization.engine.free_contrast import without_contrast
        from gradleak.training.optimisers import BETA2

        if self.balance is None:
            return slope.sign(), BETA2
        rough = torch.autograd.grad(variation(x, torch.abs).sum(), x)[0]
        if scope is None:
            return _unit(slope) + self.balance * _unit(rough), QUICK
        rough = without_contrast(rough, x.detach(), scope)
        return _unit(slope) + self.balance / 2.0 * _unit(rough), QUICK

    def _objective(self, members: Members) -> Objective:
        import torch

        from gradleak.attacks.optimization.engine.distances import Cosine
        from gradleak.attacks.optimization.engine.jacobian import descend
        from gradleak.attacks.optimization.engine.module_gradients import ModuleGradients
        from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients

        network, labels = members.network, members.labels
        assert labels is not None
        ignored = self.ignored(network.chain)
        compared = [name not in ignored for name in network.names]
        tv = self.tv if self.balance is None else 0.0

        def differentiated(x: Tensor, _: Tensor | None) -> Value:
            cosine = _distance(network(x, labels, members.scale), members.targets, compared)
            value = cosine + tv * variation(x, torch.abs) + self._apart(network)
            return cosine.detach(), value.detach(), torch.autograd.grad(value.sum(), x)[0], None

        def surrogate(x: Tensor, moved: Tensor | None) -> Value:
            assert isinstance(network, ModuleGradients) and moved is not None
            moved = moved.detach().requires_grad_()
            found = network(x, labels, members.scale, moved)
            cosine = _distance(found, members.targets, compared)
            value = cosine + tv * variation(x, torch.abs) + self._apart(network)
            slope, in_moved = torch.autograd.grad(value.sum(), (x, moved), allow_unused=True)
            return cosine.detach(), value.detach(), slope, in_moved

        if isinstance(network, ModuleGradients):
            return differentiated if members.scaling is None else surrogate
        matched = Cosine(members.targets, compared)

        def written(x: Tensor, scaling: Tensor | None) -> Value:
            given = x.detach(), labels, matched, members.scale
            moved: Tensor | None = None
            if isinstance(network, BranchGradients):
                known = network if scaling is None else network.with_scaling(scaling)
                cosine, down, _, moved = known.descend_scaling(*given)
            else:
                cosine, down, _ = descend(network, *given)
            rough = tv * variation(x, torch.abs)
            slope = down + torch.autograd.grad(rough.sum(), x)[0]
            return cosine, cosine + rough.detach(), slope, moved

        return self._replayed(written, network)

    def _replayed(
        self, objective: Objective, network: ChainGradients | BranchGradients
    ) -> Objective:
        """An objective whose kernels an accelerator may launch at once."""
        from gradleak.attacks.optimization.engine.replay import Replayed

        step = Replayed(lambda x, *moved: objective(x, moved[0] if moved else None))

        def evaluated(x: Tensor, moved: Tensor | None) -> Value:
            given = (x,) if moved is None else (x, moved)
            cosine, value, slope, in_moved = step(network.device, *given)
            assert cosine is not None and value is not None and slope is not None
            return cosine, value, slope, in_moved

        return evaluated

    def _apart(self, network: object) -> Tensor | float:
        """Weighted distance from known statistics of norms; 0 if they are not used."""
        from gradleak.attacks.optimization.engine.module_gradients import ModuleGradients

        if not self.statistics or not isinstance(network, ModuleGradients):
            return 0.0
        return self.statistics * network.apart


class InvertingGradients(CosineSearch):
    """Inverting Gradients: images in the input range by the cosine distance of gradients."""

    method: Literal["inverting_gradients"] = "inverting_gradients"
    lock: Lock = "guess"


def _unit(slope: Tensor) -> Tensor:
    """Gradients (M, K, C, H, W), each member's divided by its norm."""
    norms = slope.flatten(1).norm(dim=1).clamp(min=1e-30)
    return slope / norms.view(-1, 1, 1, 1, 1)


def _distance(found: list[Tensor], targets: list[Tensor], compared: list[bool]) -> Tensor:
    """Return 1 − cosine of each member (M,), differentiable; `targets` have norm 1."""
    import torch

    pairs = [(a, b) for a, b, used in zip(found, targets, compared, strict=True) if used]
    inner = torch.stack([(a * b).flatten(1).sum(1) for a, b in pairs]).sum(0)
    square = torch.stack([a.flatten(1).square().sum(1) for a, _ in pairs]).sum(0)
    return 1.0 - inner / square.sqrt()
