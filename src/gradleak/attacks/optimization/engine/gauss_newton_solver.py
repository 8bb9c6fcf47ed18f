"""Levenberg-Marquardt with preconditioned conjugate gradients on gradients of a network."""

from collections.abc import Callable, Mapping, Sequence
from math import log, prod, sqrt
from typing import Any, Protocol

import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients
from gradleak.attacks.optimization.engine.jacobian import Linearised
from gradleak.attacks.optimization.engine.lbfgs import CHANGE, TARGET
from gradleak.attacks.optimization.engine.preconditioner import Preconditioner, depth, normal_matrix
from gradleak.attacks.optimization.engine.search_batch import Members
from gradleak.models.chain import Chain
from gradleak.operators.limits import preconditioner_bytes
from gradleak.runtime.progress import progress

BUDGET = "steps spent"
NO_DECREASE = "no decrease along the step"

# Most conjugate-gradient iterations per step, and their tolerance, relative to the preconditioned
# residual.
INNER, TOLERANCE = 100, 1e-2
# Initially λ = DAMPING · ||r||² / (n σ²), with σ² the variance of uniform noise in the input range:
# the cost of a move across the range, relative to the residual.
DAMPING = 0.1
# Number of conjugate-gradient steps after which an old H is recomputed, in images of up to FREE
# unknowns. In larger ones, the steps since have to have cost as much: H takes n³ operations to
# compute and factor (n³ / 3 of them to factor), and a step 4·n² at a BOUND-th of the speed, which
# memory limits.
STALE, FREE, BOUND = 10, 4096, 16.0
# Most times that a step is halved.
HALVINGS = 6
# Factors of λ: after a full step that kept its promise, a shortened step, a rejected one.
LOWER, RAISE, REFUSED = 0.5, 4.0, 16.0
# Rejected steps in a row, and accepted ones that together lower the distance by at most CALM.
REFUSALS, WINDOW, CALM = 3, 3, 0.5

Vector = Callable[[Tensor], Tensor]


class LeastSquares(Protocol):
    """Residuals r(x), and products with their derivative J at a point of `linearise`."""

    network: Any
    weights: Sequence[float]
    precondition: bool

    def linearise(self, x: Tensor) -> Any:
        """Return the point of images x (1, K, C, H, W)."""

    def residual(self, at: Any) -> list[Tensor]:
        """Return r."""

    def forward(self, at: Any, v: Tensor) -> list[Tensor]:
        """Return J v."""

    def adjoint(self, at: Any, u: Sequence[Tensor]) -> Tensor:
        """Return Jᵀ u."""

    def distance(self, x: Tensor) -> float:
        """Return ||r||² unweighted: DLG's distance."""


class Problem:
    """Weighted residuals of one member's (restart's) gradients.

    `weights` multiply the residual of each parameter, 1 by default; for `known` see `Linearised`.
    `precondition` is true if `normal_matrix` applies (it takes one image and no skips) and fits.
    """

    def __init__(
        self,
        member: Members,
        weights: Sequence[float] | None = None,
        known: Mapping[str, Tensor] | None = None,
        *,
        precondition: bool = True,
    ) -> None:
        network, labels = member.network, member.labels
        assert isinstance(network, ChainGradients) and labels is not None
        self.network, self._labels = network, labels
        self._member, self._known = member, known or {}
        self.weights = weights if weights is not None else [1.0] * len(member.targets)
        self._targets = [t.flatten(2) if t.ndim > 2 else t for t in member.targets]
        one = member.starts.shape[1] == 1 and network.chain.is_sequential
        fits = preconditioner_bytes(prod(network.chain.input)) > 0.0
        self.precondition = precondition and one and fits

    def linearise(self, x: Tensor) -> Linearised:
        """Linearise the network around images x (1, K, C, H, W)."""
        return Linearised(self.network, x, self._labels, self._member.scale, self._known)

    def residual(self, at: Linearised) -> list[Tensor]:
        """Return the weighted r(x)."""
        return [
            w * (g - t) for w, g, t in zip(self.weights, at.gradients(), self._targets, strict=True)
        ]

    def forward(self, at: Linearised, v: Tensor) -> list[Tensor]:
        """Return the weighted J v."""
        return [w * g for w, g in zip(self.weights, at.forward(v), strict=True)]

    def adjoint(self, at: Linearised, u: Sequence[Tensor]) -> Tensor:
        """Return Jᵀ u of the weighted residual."""
        return at.adjoint([w * g for w, g in zip(self.weights, u, strict=True)])

    def distance(self, x: Tensor) -> float:
        """Return ||r||² with nothing known and all weights 1: DLG's distance."""
        at = Linearised(self.network, x, self._labels, self._member.scale)
        return square([g - t for g, t in zip(at.gradients(), self._targets, strict=True)])


class Damped:
    """One minimisation of ||r||²; each step minimises ||r + J d||² + λ ||d||².

    λ = c ||r||² / (n σ²) falls with the residual, as local quadratic convergence requires
    (Yamashita and Fukushima 2001), and c, initially `DAMPING`, follows how well the last step kept
    its promise. σ² is `spread`, see `DAMPING`. Stops one step after ||r||² reaches `target`. After
    a run, `steps` counts steps tried, `passes` network passes and products with J and Jᵀ; `trace`
    is ||r||² after each step and `stop` the stopping reason.
    """

    def __init__(self, problem: LeastSquares, *, spread: float, target: float) -> None:
        self._problem, self._spread, self._target, self._c = problem, spread, target, DAMPING
        self._matrix: Tensor | None = None
        self._inverse: Preconditioner | None = None
        self._last_inner = 0  # steps of conjugate gradients in the last step
        self._since = 0  # and since H was computed
        self.steps, self.passes = 0, 0
        self.trace: list[float] = []
        self.stop = ""

    def minimise(self, x: Tensor, steps: int) -> Tensor:
        """Return the lowest point found from images x (1, K, C, H, W) in at most `steps` steps."""
        at = self._problem.linearise(x)
        residual = self._problem.residual(at)
        value, refused, reached = square(residual), 0, False
        self.passes += 1
        self.trace.append(value)
        with progress(steps, "steps", self.steps) as bar:
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
        self, at: Any, residual: Sequence[Tensor], damping: float, *, fresh: bool
    ) -> tuple[Tensor, float]:
        """Return step d of the damped linear problem, and the decrease of ||r||² it promises."""
        problem = self._problem
        precondition: Vector = lambda v: v  # noqa: E731
        if problem.precondition:
            chain = problem.network.chain
            if self._matrix is None or (fresh and self._is_old(chain)):
                self._matrix = self._inverse = None  # not two of them at a time
                self._matrix, self._since = normal_matrix(at, problem.weights, depth(chain)), 0
            if self._inverse is None or not serves(self._inverse, damping):
                self._inverse = None
                self._inverse = Preconditioner(self._matrix, damping)
            precondition = self._inverse
        shape = at.images.shape

        def product(v: Tensor) -> Tensor:
            self.passes += 1
            moved = problem.forward(at, v.view(shape))
            return problem.adjoint(at, moved).flatten() + damping * v

        down = -problem.adjoint(at, residual).flatten()
        d, self._last_inner = conjugate_gradients(product, precondition, down, INNER, TOLERANCE)
        self._since += self._last_inner
        direction = d.view(shape)
        ahead = [r + j for r, j in zip(residual, problem.forward(at, direction), strict=True)]
        self.passes += 1
        return direction, square(residual) - square(ahead)

    def _is_old(self, chain: Chain) -> bool:
        """True if H may have changed and computing it again pays."""
        if not chain.is_kinked and self._last_inner <= STALE:
            return False
        n = prod(chain.input)
        return n <= FREE or self._last_inner == INNER or 4.0 * BOUND * self._since >= n

    def _along(
        self, x: Tensor, direction: Tensor, value: float
    ) -> tuple[float, Tensor, Any, list[Tensor]] | None:
        """Try 1, 1/2, 1/4 ... of the step until ||r||² falls; None if it never does."""
        for halvings in range(HALVINGS + 1):
            share = 0.5**halvings
            trial = x + share * direction
            at = self._problem.linearise(trial)
            residual = self._problem.residual(at)
            self.passes += 1
            if square(residual) < value:
                return share, trial, at, residual
        return None


def serves(inverse: Preconditioner, damping: float) -> bool:
    """True if a new factor would cost more than the steps of conjugate gradients that it saves.

    At a condition number κ, there are at most log(2 / `TOLERANCE`)·√κ / 2 of them.
    """
    ratio, n = inverse.ratio(damping), inverse.unknowns
    if n <= FREE or ratio == 1.0:
        return ratio == 1.0
    more = 0.5 * log(2.0 / TOLERANCE) * sqrt(ratio)
    return more <= INNER and 12.0 * BOUND * more <= n


def conjugate_gradients(
    product: Vector, precondition: Vector, right: Tensor, most: int, tolerance: float
) -> tuple[Tensor, int]:
    """Solve A x = `right` (n,) to `tolerance` in the preconditioner's norm; return x and steps."""
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


def square(parts: Sequence[Tensor]) -> float:
    """Sum of the squares of all entries."""
    return float(sum(float(part.square().sum()) for part in parts))
