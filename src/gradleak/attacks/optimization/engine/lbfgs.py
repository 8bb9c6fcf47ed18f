"""L-BFGS for many problems at once, each with its own curvature, line search and end.

Every round evaluates the objective once for all unfinished problems, each at its own trial point:
one may take its first step while another is in the middle of a line search. No problem waits for
another, and none sees another's numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.line_search import Curvature, LineSearch, Rows
from gradleak.runtime.progress import progress

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

TARGET = "target reached"
GRADIENT = "gradient small"
CHANGE = "change small"
BUDGET = "evaluations spent"
NO_DECREASE = "no decrease along the gradient"
NOT_FINITE = "not finite at the start"
STOPS = (TARGET, GRADIENT, CHANGE, BUDGET, NO_DECREASE, NOT_FINITE)

# Length of the first step, relative to max(|x|, 1).
FIRST_STEP = 1e-2
# Number of last values that `Settings.slack` compares with.
RECENT = 10


@dataclass(frozen=True)
class Settings:
    """Stopping criteria and memory."""

    # Maximum number of evaluations (value and gradient) of each problem, at least 1.
    evaluations: int = 1000
    history: int = 20  # pairs of steps and gradient changes that are kept
    target: float = -np.inf  # stop at this value or below
    gradient: float = 0.0  # stop when the largest entry of the gradient is this or below
    # Stop when `window` steps lowered the value by no more than this fraction of it.
    change: float = 0.0
    window: int = 20  # steps that `change` looks back
    # A step is accepted once it ends below (1 + slack) times the largest of the last `RECENT`
    # values, for functions that jump; the lowest point seen is returned.
    slack: float = 0.0


@dataclass(frozen=True)
class Minimum:
    """Results of M problems of n variables."""

    # (M, n), the lowest point reached; the start where the function is not finite there.
    x: Tensor
    value: np.ndarray  # (M,) float64
    evaluations: np.ndarray  # (M,) number of evaluations
    stop: list[str]  # stopping reason of each, one of `STOPS`
    # (M, most evaluations) float64, the value reached after each evaluation, NaN after the end.
    trace: np.ndarray

    def then(self, later: Minimum) -> Minimum:
        """Join a continued run: its end point, after the evaluations of both."""
        evaluations = self.evaluations + later.evaluations
        trace = np.full((len(evaluations), evaluations.max()), np.nan)
        for m, (one, other) in enumerate(zip(self.evaluations, later.evaluations, strict=True)):
            trace[m, :one] = self.trace[m, :one]
            trace[m, one : one + other] = later.trace[m, :other]
        return Minimum(later.x, later.value, evaluations, later.stop, trace)


def minimise(objective: Objective, start: Tensor, settings: Settings) -> Minimum:
    """Minimise M functions of n variables at once, from `start` (M, n).

    ``objective(x (A, n), members (A,))`` gives values (A,) and gradients (A, n) of the unfinished
    problems `members`. A value or gradient that is not finite shortens the step.
    """
    members = start.shape[0]
    out = Minimum(
        start.clone(),
        np.full(members, np.nan),
        np.zeros(members, dtype=int),
        [""] * members,
        np.full((members, settings.evaluations), np.nan),
    )
    value, gradient = objective(start, torch.arange(members, device=start.device))
    run = _Run(start, value.double(), gradient, settings)
    run.collect(out)
    with progress(settings.evaluations, "gradients", 1) as bar:
        while run.ids.numel():
            trial = run.trial()
            value, gradient = objective(trial, run.ids)
            run.advance(trial, value.double(), gradient)
            run.collect(out)
            bar.update()
    return out


class _Run(Rows):
    """Unfinished problems, one in each row of every tensor."""

    def __init__(self, x: Tensor, value: Tensor, gradient: Tensor, settings: Settings) -> None:
        count, device = len(x), x.device
        everyone = torch.ones(count, dtype=torch.bool, device=device)
        self.settings = settings
        self.curvature = Curvature(x, settings.history)
        self.search = LineSearch(x)
        self.ids = torch.arange(count, device=device)
        self.x, self.value, self.gradient = x, value, gradient
        self.best, self.best_value = x, value
        self.recent = value.unsqueeze(1).expand(-1, RECENT).clone()
        self.direction = torch.zeros_like(x)
        # Length of the last step, the initial length of a step along the gradient.
        self.length = FIRST_STEP * _norm(x).clamp(min=1.0)
        self.evaluations = torch.ones_like(self.ids)
        self.steps = torch.zeros_like(self.ids)
        self.past = torch.full((count, settings.window), torch.inf, device=device).double()
        finite = torch.isfinite(value) & torch.isfinite(gradient).all(1)
        self.reason = torch.where(finite, -1, STOPS.index(NOT_FINITE))
        nothing = torch.zeros_like(x)
        self._judge(finite, ~everyone)
        self._aim(~everyone, everyone, nothing, nothing)

    def trial(self) -> Tensor:
        """Points (A, n) to evaluate next."""
        return self.x + self.search.t.to(self.x.dtype).unsqueeze(1) * self.direction

    def advance(self, trial: Tensor, value: Tensor, gradient: Tensor) -> None:
        """Process values and gradients at `trial`, and set the next trial points."""
        self.evaluations = self.evaluations + 1
        moved, stuck = self.search.tell(value, _dot(gradient, self.direction))
        step, change = torch.zeros_like(self.x), torch.zeros_like(self.x)
        if bool(moved.any()):
            step, change = trial - self.x, gradient - self.gradient
            self._move(moved, step, trial, value, gradient)
        # A step lost to rounding does not count.
        least = torch.finfo(self.x.dtype).eps * _norm(self.x)
        stuck = stuck | (moved & (_norm(step) <= least))
        hopeless = stuck & (self.curvature.stored == 0)
        self.curvature.clear(stuck)
        self._judge(moved, hopeless)
        if bool((moved | stuck).any()):
            self._aim(moved, stuck, step, change)

    def _move(
        self, moved: Tensor, step: Tensor, trial: Tensor, value: Tensor, gradient: Tensor
    ) -> None:
        """Go to the trial points of those that `moved`."""
        self.length = torch.where(moved, _norm(step), self.length)
        self.x = _choose(moved, trial, self.x)
        self.gradient = _choose(moved, gradient, self.gradient)
        self.value = torch.where(moved, value, self.value)
        better = self.value < self.best_value
        self.best = _choose(better, self.x, self.best)
        self.best_value = torch.minimum(self.value, self.best_value)
        recent = torch.cat((self.recent[:, 1:], self.value[:, None]), 1)
        self.recent = _choose(moved, recent, self.recent)

    def _judge(self, moved: Tensor, hopeless: Tensor) -> None:
        """Set the stopping reason of each problem that should stop."""
        settings = self.settings
        slot = (self.steps % settings.window).unsqueeze(1)
        before = self.past.gather(1, slot).squeeze(1)
        self.past.scatter_(1, slot, torch.where(moved, self.best_value, before).unsqueeze(1))
        self.steps = self.steps + moved.long()
        small = torch.isfinite(before) & (
            before - self.best_value <= settings.change * before.abs()
        )
        flat = self.gradient.abs().amax(1) <= settings.gradient
        for mask, why in (
            (moved & (self.best_value <= settings.target), TARGET),
            (moved & flat, GRADIENT),
            (moved & small, CHANGE),
            (hopeless, NO_DECREASE),
            (self.evaluations >= settings.evaluations, BUDGET),
        ):
            new = mask & (self.reason < 0)
            self.reason = torch.where(new, STOPS.index(why), self.reason)

    def _aim(self, moved: Tensor, stuck: Tensor, step: Tensor, change: Tensor) -> None:
        """Learn from those that `moved`, and start line searches for them and those `stuck`."""
        direction = -self.curvature.learn(moved, step, change, self.gradient)
        slope = _dot(self.gradient, direction)
        # Rounding can spoil a direction; the negative gradient always descends.
        spoilt = moved & ~(torch.isfinite(slope) & (slope < 0))
        self.curvature.clear(spoilt)
        plain = self.curvature.stored == 0
        direction = _choose(plain, -self.gradient, direction)
        norm = _norm(self.gradient)
        slope = torch.where(plain, -norm.square(), slope)
        first = self.length / norm.clamp(min=torch.finfo(torch.float64).tiny)
        rows = moved | stuck
        self.direction = _choose(rows, direction, self.direction)
        highest = self.recent.amax(1)
        ceiling = highest + self.settings.slack * highest.abs()
        self.search.begin(rows, self.value, slope, torch.where(plain, first, 1.0), ceiling)

    def collect(self, out: Minimum) -> None:
        """Record the lowest values, and remove problems that have a reason to stop."""
        ids, count = self.ids.cpu().numpy(), self.evaluations.cpu().numpy()
        value, reason = self.best_value.cpu().numpy(), self.reason.cpu().numpy()
        out.trace[ids, count - 1] = value
        ended = reason >= 0
        if not ended.any():
            return
        out.value[ids[ended]], out.evaluations[ids[ended]] = value[ended], count[ended]
        for member, why in zip(ids[ended], reason[ended], strict=True):
            out.stop[member] = STOPS[why]
        rows = self.reason >= 0
        out.x[self.ids[rows]] = self.best[rows]
        for part in (self.curvature, self.search, self):
            part.keep(~rows)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of rows, float64."""
    return (a * b).sum(1).double()


def _norm(a: Tensor) -> Tensor:
    """Norms of rows, float64."""
    return torch.linalg.vector_norm(a, dim=1).double()


def _choose(rows: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Rows of `a` where the mask `rows` is set, of `b` elsewhere."""
    return torch.where(rows.unsqueeze(1), a, b)
