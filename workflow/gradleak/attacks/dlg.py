"""Deep leakage from gradients, DLG and iDLG, by a batched L-BFGS (R-GAP eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.search import Search, moments
from gradleak.matching.branches import BranchGradients
from gradleak.matching.descent import Descent
from gradleak.matching.distances import Squared
from gradleak.matching.lbfgs import Minimum, Settings, minimise
from gradleak.matching.members import Members
from gradleak.matching.output import told
from gradleak.models.chain import Chain
from gradleak.progress import progress

# Where a dummy's own gradient vanishes, its distance to a gradient of norm 1 is 1: a saturated
# output, from which no step leads away.
DEAD = 1e-6
# Share of the evaluations before a lock's γ and β move.
LEAD = 0.25


@dataclass(frozen=True)
class Dlg(Search):
    """Minimise Σ_l ||∇W_l' − ∇W_l||² over the image, and over the label where it is unknown.

    γ and β of a lock that are to be fitted join the image after the first `LEAD` of the
    evaluations: from the start on, they run away to a saturated lock.

    The distance is relative: both gradients are divided by the norm of the shared one. A search
    is held for a failure, judged without the original, if its distance stays at `failure_loss` or
    above (a gradient of zero has 1), or if its image leaves the range of inputs by more than
    `failure_range` of its width in root mean square, or if it was not finite.

    Parameters
    ----------
    iterations
        Most evaluations of value and gradient of each search.
    history
        Pairs that L-BFGS remembers.
    slack
        A step may raise the distance to (1 + slack) times the largest of the last 10. ``None``
        for 0 with smooth activations and 1 with kinks (ReLU, LeakyReLU), where the distance jumps
        as signs of z change: a search that must always fall ends at the first such wall.
    target
        Stop at this relative distance; rounding of float32 gradients makes about as much.
    change, window
        Stop when `window` steps lowered the distance by no more than this share.
    failure_loss, failure_range
        See above.
    """

    precision: str = "float64"
    iterations: int = 1000
    history: int = 100
    slack: float | None = None
    target: float = 1e-15
    change: float = 0.01
    window: int = 200
    failure_loss: float = 0.5
    failure_range: float = 1.0

    def search(self, members: Members, views: Sequence[AttackerView]) -> list[Reconstruction]:
        """See `Search.search`."""
        chain, shape = members.network.chain, members.starts.shape
        settings = Settings(
            evaluations=self.iterations,
            history=self.history,
            target=self.target,
            change=self.change,
            window=self.window,
            slack=slack_of(chain) if self.slack is None else self.slack,
        )
        found = _searched(members, settings)
        pixels = shape[1:].numel()
        images = found.x[:, :pixels].reshape(shape).double().cpu().numpy()
        labels = members.labels
        if labels is None:
            end = pixels + members.logits.shape[1:].numel()
            labels = told(found.x[:, pixels:end].reshape(members.logits.shape), views[0].loss)
        return [
            Reconstruction(
                images[m],
                stop=found.stop[m],
                label=int(labels[m, 0]) if shape[1] == 1 else None,
                failure=self.failure(float(found.value[m]), images[m], view),
                loss=float(found.value[m]),
                evaluations=int(found.evaluations[m]),
                trace=moments(found.trace[m, : found.evaluations[m]]),
            )
            for m, view in enumerate(views)
        ]

    def failure(self, loss: float, images: np.ndarray, view: AttackerView) -> str:
        """Why a search that ended at `loss` with `images` failed; empty if it did not."""
        if not np.isfinite(loss):
            return "The distance of gradients is not finite at the start."
        if loss >= self.failure_loss:
            return (
                f"The search ended at a relative distance of gradients of {loss:.2g}, not below "
                f"failure_loss: {self.failure_loss:g}; it diverged or stuck at a saturated output."
            )
        outside = images - np.clip(images, view.low, view.high)
        excess = float(np.sqrt(np.mean(outside**2))) / (view.high - view.low)
        if excess > self.failure_range:
            return (
                f"The image leaves the range of inputs by {excess:.2g} of its width in root mean "
                f"square, above failure_range: {self.failure_range:g}; the search diverged."
            )
        return ""


def slack_of(chain: Chain) -> float:
    """Default slack of a search under `chain`: 1 if an activation has a kink, else 0."""
    return float(chain.is_kinked)


def _searched(members: Members, settings: Settings) -> Minimum:
    """Images (M, ·), labels if unknown, and γ and β of a lock if they are to be fitted."""
    start, distance = members.starts.flatten(1), _Distance(members)
    if members.labels is None:
        start = torch.cat((start, members.logits.flatten(1)), 1)
    if members.scaling is None:
        return minimise(distance, start, settings)
    count = max(1, int(LEAD * settings.evaluations))
    left = max(1, settings.evaluations - count)
    with progress(count + left, "gradients") as bar:
        with bar.doing(count):
            lead = minimise(distance, start, replace(settings, evaluations=count))
        start = torch.cat((lead.x, members.scaling), 1)
        with bar.doing(left):
            return lead.then(minimise(distance, start, replace(settings, evaluations=left)))


class _Distance:
    """Relative distance of gradients and its derivative, as `minimise` wants them."""

    def __init__(self, members: Members) -> None:
        self._all, self._active = members, members

    def __call__(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Distances (A,) and gradients (A, n) at x (A, n) of members `ids`."""
        # Members only ever leave, so the same number of them are the same ones.
        if len(ids) != len(self._active):
            self._active = self._all.select(ids)
        found = [self._part(x[part], self._active.select(part)) for part in self._active.parts()]
        values, gradients = zip(*found, strict=True)
        return torch.cat(values), torch.cat(gradients)

    @staticmethod
    def _part(x: torch.Tensor, members: Members) -> tuple[torch.Tensor, torch.Tensor]:
        size, outputs = members.starts.shape, members.logits.shape
        pixels, labels = size[1:].numel(), members.labels
        told = 0 if labels is not None else outputs[1:].numel()
        images, logits, scaling = x.split((pixels, told, x.shape[1] - pixels - told), 1)
        if labels is None:
            labels = logits.reshape(outputs)
        images = images.reshape(size)
        network = members.network
        if isinstance(network, BranchGradients):
            fits = scaling.shape[1] > 0
            if members.scaling is not None:
                network = network.with_scaling(scaling if fits else members.scaling)
            value, down, in_logits, in_scaling = network.descend_scaling(
                images, labels, Squared(members.targets), members.scale
            )
        else:
            descent = Descent(network, members.targets, members.scale)
            value, down, in_logits = descent(images, labels)
            fits, in_scaling = False, scaling
        parts = [down.flatten(1)]
        if in_logits is not None:
            parts.append(in_logits.flatten(1))
        if fits:
            parts.append(in_scaling)
        dead = (value - 1.0).abs() <= DEAD
        return torch.where(dead, torch.inf, value), torch.cat(parts, 1)
