"""Deep leakage from gradients, DLG and iDLG, by a batched L-BFGS (R-GAP eq. 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import PositiveFloat

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.optimization.optimization_attack import Lock, Search, Share, Start
from gradleak.runtime.progress import progress
from gradleak.settings.fields import AmountOrName, Hidden, Identifier, Precision

if TYPE_CHECKING:
    from torch import Tensor

    from gradleak.attacks.optimization.engine.lbfgs import Minimum, Settings
    from gradleak.attacks.optimization.engine.search_batch import Members

# Where a dummy's own gradient vanishes, its distance to a gradient of norm 1 is 1: the output
# is saturated, and no step leads away.
DEAD = 1e-6
# Fraction of the evaluations before γ and β of a lock start to move.
LEAD = 0.25


class Judged(Search):
    """An optimisation-based attack that judges failure by gradient distance and image range."""

    # Relative gradient distance from which a run has failed; a gradient of zero has 1.
    failure_loss: PositiveFloat = 0.5
    # Largest distance of its image from the input range: root mean square, as a fraction of it.
    failure_range: PositiveFloat = 1.0

    def contradiction(self) -> str | None:
        """See `gradleak.attacks.base.Entry`."""
        if (self.start == "reconstruction") != bool(self.made_from):
            return "start: reconstruction needs of: ATTACK, and nothing else takes it"
        return None

    def judge(self, loss: float, images: np.ndarray, view: AttackerView) -> str:
        """Return why a run that ended at `loss` with `images` failed; empty if it did not."""
        if not np.isfinite(loss):
            return "The distance of gradients is not finite at the start."
        if loss >= self.failure_loss:
            return (
                f"The search ended at a relative distance of gradients of {loss:.2g}, where "
                f"{self.failure_loss:g} or more counts as failed; it diverged or stuck at a "
                "saturated output."
            )
        outside = images - np.clip(images, view.low, view.high)
        excess = float(np.sqrt(np.mean(outside**2))) / (view.high - view.low)
        if excess > self.failure_range:
            return (
                f"The image leaves the range of inputs by {excess:.2g} of its width in root mean "
                f"square, where more than {self.failure_range:g} counts as failed; the search "
                "diverged."
            )
        return ""


class Dlg(Judged):
    """Minimise Σ_l ||∇W_l' − ∇W_l||² over the image, and over the label where it is unknown.

    γ and β of a lock, if they are fitted, join the image after the first `LEAD` of the
    evaluations: optimised from the start, they run away to a saturated lock.

    The distance is relative: both gradients are divided by the norm of the shared one.
    """

    threat = "A"
    method: Literal["dlg"] = "dlg"
    # Granted or recovered from the gradient (iDLG), or optimised with the image.
    label: Literal["from_view", "unknown"] = "from_view"
    start: Start = "normal"
    of: Identifier | None = None  # attack whose reconstruction is the initial image
    answer: Literal["answer", "twin"] = "answer"  # which of its reconstructions
    # Target set whose images of the same class are initial images.
    own_images: Identifier | None = None
    start_noise: Share = 0.0
    precision: Precision = "float64"
    iterations: AmountOrName = 1000  # most evaluations of value and gradient per restart
    lock: Lock = "guess"
    target: Hidden[float] = 1e-15  # relative distance to stop at: about float32's rounding

    def contradiction(self) -> str | None:
        """See `gradleak.attacks.base.Entry`."""
        if (why := super().contradiction()) is not None:
            return why
        if (self.start == "class") != (self.own_images is not None):
            return "start: class needs own_images: TARGETS, and nothing else takes it"
        if self.of is None and "answer" in self.model_fields_set:
            return (
                f"answer: {self.answer} chooses among the images of another attack; add start: "
                "reconstruction and of: ATTACK, or take answer out"
            )
        if self.start in ("normal", "uniform") and "start_noise" in self.model_fields_set:
            return (
                f"start_noise is added to given starts, and start: {self.start} is noise already; "
                "take start_noise out, or choose start: reconstruction or class"
            )
        return None

    def search(self, members: Members, views: Sequence[AttackerView]) -> list[Reconstruction]:
        """See `Search.search`."""
        from gradleak.attacks.optimization.engine.lbfgs import Settings

        shape = members.starts.shape
        settings = Settings(
            evaluations=self.iterations,
            history=100,
            target=self.target,
            # What no image can match stays in the distance and hides progress.
            change=0.0 if members.mismatched else 0.01,
            window=200,
            # With kinks (ReLU, LeakyReLU) the distance jumps as z changes sign: an optimiser that
            # must always descend stops at the first such jump.
            slack=float(members.network.is_kinked),
        )
        found = _searched(members, settings)
        pixels, outputs = shape[1:].numel(), members.logits.shape
        logits = members.logits
        if members.labels is None:
            logits = found.x[:, pixels : pixels + outputs[1:].numel()].reshape(outputs)
        answers = self.reconstructions(
            members,
            found.x[:, :pixels].reshape(shape),
            logits,
            [found.trace[m, :n] for m, n in enumerate(found.evaluations)],
            stop=found.stop,
            loss=found.value.tolist(),
            evaluations=found.evaluations.tolist(),
        )
        return [
            replace(one, failure=self.judge(one.loss, one.images, view))
            for one, view in zip(answers, views, strict=True)
        ]


def _searched(members: Members, settings: Settings) -> Minimum:
    """Minimise over images (M, ·), labels if unknown, and γ and β of a lock if they are fitted."""
    import torch

    from gradleak.attacks.optimization.engine.lbfgs import minimise

    active, width = members, 0
    evaluated: list[Callable[[Tensor], tuple[Tensor, Tensor]]] = []

    def distance(x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal active, width, evaluated
        # Members only ever leave, so equal numbers mean equal members.
        if (len(ids), x.shape[1]) != (len(active), width):
            active, width = members.select(ids), x.shape[1]
            evaluated = [_at(active.select(part)) for part in active.parts()]
        parts = zip(active.parts(), evaluated, strict=True)
        values, gradients = zip(*(one(x[part]) for part, one in parts), strict=True)
        return torch.cat(values), torch.cat(gradients)

    start = members.starts.flatten(1)
    if members.labels is None:
        start = torch.cat((start, members.logits.flatten(1)), 1)
    if members.scaling is None:
        return minimise(distance, start, settings)
    count = max(1, int(LEAD * settings.evaluations))
    left = max(1, settings.evaluations - count)
    with progress(count + left, "gradients") as bar:
        with bar.doing(count):
            lead = minimise(distance, start, replace(settings, evaluations=count))
        start, active, width = torch.cat((lead.x, members.scaling), 1), members, 0
        with bar.doing(left):
            return lead.then(minimise(distance, start, replace(settings, evaluations=left)))


def _at(members: Members) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Function `_distance` of these members, whose kernels an accelerator may launch at once."""
    from gradleak.attacks.optimization.engine.module_gradients import ModuleGradients
    from gradleak.attacks.optimization.engine.replay import Replayed

    if isinstance(members.network, ModuleGradients):
        return lambda x: _distance(x, members)
    step = Replayed(lambda x: _distance(x, members))

    def evaluated(x: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = step(members.network.device, x)
        assert value is not None and slope is not None
        return value, slope

    return evaluated


def _distance(x: Tensor, members: Members) -> tuple[Tensor, Tensor]:
    """Return relative gradient distances (M,) and their gradients (M, n) at x (M, n)."""
    import torch

    from gradleak.attacks.optimization.engine.distances import Squared
    from gradleak.attacks.optimization.engine.jacobian import descend
    from gradleak.attacks.optimization.engine.module_gradients import ModuleGradients
    from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients

    size, outputs = members.starts.shape, members.logits.shape
    pixels, labels = size[1:].numel(), members.labels
    told = 0 if labels is not None else outputs[1:].numel()
    images, logits, scaling = x.split((pixels, told, x.shape[1] - pixels - told), 1)
    images, labels = images.reshape(size), logits.reshape(outputs) if labels is None else labels
    network, fits = members.network, scaling.shape[1] > 0
    matched = Squared(members.targets)
    if isinstance(network, BranchGradients):
        if members.scaling is not None:
            network = network.with_scaling(scaling if fits else members.scaling)
        value, *slopes = network.descend_scaling(images, labels, matched, members.scale)
    elif isinstance(network, ModuleGradients):
        value, *slopes = network.descend(images, labels, members.targets, members.scale)
    else:
        value, *slopes = descend(network, images, labels, matched, members.scale)
    parts = [part.flatten(1) for part in slopes[: 2 + fits] if part is not None]
    dead = (value - 1.0).abs() <= DEAD
    return torch.where(dead, torch.inf, value), torch.cat(parts, 1)
