"""Levenberg-Marquardt with preconditioned conjugate gradients on gradients of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from gradleak.matching.linearised import Linearised
from gradleak.matching.members import Members
from gradleak.matching.preconditioner import Preconditioner, depth, normal_matrix
from gradleak.progress import Progress, progress

TARGET = "target reached"
CHANGE = "change small"
BUDGET = "steps spent"
NO_DECREASE = "no decrease along the step"

# Conjugate-gradient steps that an old H may cost before it is computed anew.
STALE = 10
# A step is halved down to this share of itself.
LEAST_STEP = 2.0**-6
# λ's factors: a full step that kept its promise, a step that had to be cut short, one refused.
LOWER, RAISE, REFUSED = 0.5, 4.0, 16.0
# Refused steps in a row, and accepted ones that together lower the distance by no more than CALM.
REFUSALS, WINDOW, CALM = 3, 3, 0.5

Vector = Callable[[torch.Tensor], torch.Tensor]


class Problem:
    """Weighted residuals of one member's gradients.

    Parameters
    ----------
    member
        One search.
    weights
        What the residual of each parameter is multiplied by; 1 by default.
    known
        ``{layer: δ}``, see `Linearised`.
    precondition
        Whether `normal_matrix` can be had (it takes one image and no skips).
    """

    def __init__(
        self,
        member: Members,
        weights: Sequence[float] | None = None,
        known: Mapping[str, torch.Tensor] | None = None,
        *,
        precondition: bool = True,
    ) -> None:
        assert member.labels is not None
        self._member, self._known = member, known or {}
        self._labels = member.labels
        self.network = member.gradients
        self.weights = list(weights) if weights is not None else [1.0] * len(member.targets)
        self._targets = [t.flatten(2) if t.ndim > 2 else t for t in member.targets]
        one = member.starts.shape[1] == 1 and self.network.chain.is_sequential
        self.precondition = precondition and one

    def linearise(self, x: torch.Tensor) -> Linearised:
        """The network around images x (1, K, C, H, W)."""
        return Linearised(self.network, x, self._labels, self._member.scale, self._known)

    def residual(self, at: Linearised) -> list[torch.Tensor]:
        """Weighted r(x)."""
        return [
            w * (g - t) for w, g, t in zip(self.weights, at.gradients(), self._targets, strict=True)
        ]

    def forward(self, at: Linearised, v: torch.Tensor) -> list[torch.Tensor]:
        """Weighted J v."""
        return [w * g for w, g in zip(self.weights, at.forward(v), strict=True)]

    def adjoint(self, at: Linearised, u: Sequence[torch.Tensor]) -> torch.Tensor:
        """Jᵀ u of the weighted residual."""
        return at.adjoint([w * g for w, g in zip(self.weights, u, strict=True)])

    def distance(self, x: torch.Tensor) -> float:
        """||r||² with nothing known and all weights 1: DLG's distance."""
        at = Linearised(self.network, x, self._labels, self._member.scale)
        return square([g - t for g, t in zip(at.gradients(), self._targets, strict=True)])


class Damped:
    """One minimisation of ||r||²; each step minimises ||r + J d||² + λ ||d||².

    λ = c ||r||² / (n `spread`) falls with the residual, as local quadratic convergence asks for
    (Yamashita and Fukushima 2001), and c follows how well the last step kept its promise.

    Parameters
    ----------
    problem
        What to minimise.
    spread
        σ², see `GaussNewton`.
    damping
        c at first.
    inner, tolerance
        Of conjugate gradients.
    target
        Stop one step after ||r||² reaches this.

    Attributes
    ----------
    steps, passes
        Steps tried; passes of the network and products with J and Jᵀ.
    trace
        ||r||² after each step.
    stop
        Why it stopped.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        spread: float,
        damping: float,
        inner: int,
        tolerance: float,
        target: float,
    ) -> None:
        self._problem, self._spread, self._c = problem, spread, damping
        self._inner, self._tolerance, self._target = inner, tolerance, target
        self._matrix: torch.Tensor | None = None
        self._last_inner = 0
        self.steps, self.passes = 0, 0
        self.trace: list[float] = []
        self.stop = ""

    def minimise(self, x: torch.Tensor, steps: int) -> torch.Tensor:
        """Lowest point found from images x (1, K, C, H, W) in no more than `steps` steps."""
        with progress(steps, "steps", self.steps) as bar:
            return self._minimise(x, steps, bar)

    def _minimise(self, x: torch.Tensor, steps: int, bar: Progress) -> torch.Tensor:
        """`minimise`, step by step."""
        problem = self._problem
        at = problem.linearise(x)
        residual = problem.residual(at)
        value, refused = square(residual), 0
        self.passes += 1
        self.trace.append(value)
        reached = False
        while True:
            if reached:
                self.stop = TARGET
            elif self.steps >= steps:
                self.stop = BUDGET
            elif refused >= REFUSALS:
                self.stop = NO_DECREASE
            elif len(self.trace) > WINDOW and value > (1.0 - CALM) * self.trace[-1 - WINDOW]:
                self.stop = CHANGE
            if self.stop:
                return x
            reached = value <= self._target
            damping = self._c * value / (x.numel() * self._spread)
            direction, promised = self._step(at, residual, damping, fresh=not refused)
            self.steps += 1
            bar.update()
            found = self._along(x, direction, value)
            if found is None:
                self._c *= REFUSED
                refused += 1
                continue
            share, x, at, residual = found
            fell, value = value - square(residual), square(residual)
            if share < 0.5:
                self._c *= RAISE
            elif share == 1.0 and fell > 0.5 * promised:
                self._c *= LOWER
            refused = 0
            self.trace.append(value)

    def _step(
        self, at: Linearised, residual: Sequence[torch.Tensor], damping: float, *, fresh: bool
    ) -> tuple[torch.Tensor, float]:
        """Step d of the damped linear problem, and how much it promises to lower ||r||²."""
        problem = self._problem
        precondition: Vector = _same
        if problem.precondition:
            chain = problem.network.chain
            old = self._matrix is None or chain.is_kinked or self._last_inner > STALE
            if old and (fresh or self._matrix is None):
                layers = depth(chain)
                self._matrix = normal_matrix(at, problem.weights, layers)
            assert self._matrix is not None
            precondition = Preconditioner(self._matrix, damping)
        shape = at.images.shape

        def product(v: torch.Tensor) -> torch.Tensor:
            self.passes += 1
            moved = problem.forward(at, v.view(shape))
            return problem.adjoint(at, moved).flatten() + damping * v

        down = -problem.adjoint(at, residual).flatten()
        d, self._last_inner = conjugate_gradients(
            product, precondition, down, self._inner, self._tolerance
        )
        direction = d.view(shape)
        ahead = [r + j for r, j in zip(residual, problem.forward(at, direction), strict=True)]
        self.passes += 1
        return direction, square(residual) - square(ahead)

    def _along(
        self, x: torch.Tensor, direction: torch.Tensor, value: float
    ) -> tuple[float, torch.Tensor, Linearised, list[torch.Tensor]] | None:
        """The longest of 1, 1/2, 1/4 ... of the step that lowers ||r||²; None if none does."""
        share = 1.0
        while share >= LEAST_STEP:
            trial = x + share * direction
            at = self._problem.linearise(trial)
            residual = self._problem.residual(at)
            self.passes += 1
            if square(residual) < value:
                return share, trial, at, residual
            share *= 0.5
        return None


def conjugate_gradients(
    product: Vector, precondition: Vector, right: torch.Tensor, most: int, tolerance: float
) -> tuple[torch.Tensor, int]:
    """X with A x = `right` (n,) to `tolerance` in the preconditioner's norm, and its steps."""
    x, residual = torch.zeros_like(right), right
    z = precondition(residual)
    search, size = z, torch.dot(residual, z)
    enough = tolerance**2 * float(size)
    for steps in range(1, most + 1):
        image = product(search)
        length = size / torch.dot(search, image)
        if not bool(torch.isfinite(length)) or float(length) <= 0.0:
            return x, steps
        x = x + length * search
        residual = residual - length * image
        z = precondition(residual)
        before, size = size, torch.dot(residual, z)
        if float(size) <= enough:
            return x, steps
        search = z + (size / before) * search
    return x, most


def square(parts: Sequence[torch.Tensor]) -> float:
    """Sum of the squares of all entries."""
    return float(sum(float(part.square().sum()) for part in parts))


def _same(v: torch.Tensor) -> torch.Tensor:
    return v
