"""COPA's layer problem (eq. 5 and 7) and three matrix-free optimisers for it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from gradleak.errors import NumericsError
from gradleak.models.activations import Activation
from gradleak.operators.base import Operator

Penalty = Callable[[np.ndarray], np.ndarray]
Residuals = tuple[np.ndarray, np.ndarray | float]
INITIAL_DAMPING = 1e-3
INNER_STEPS = 150
STALL = 1e-6
TOLERANCE = 1e-20


@dataclass(frozen=True)
class LayerProblem:
    """F(Y) = ||U a(Y) − V||² + ||g(Y)||², with X = a(Y) the layer's input."""

    system: Operator  # U (rows, n)
    values: np.ndarray  # V (rows,)
    activation: Activation  # a, the activation of the layer before
    # I − P, the projection of eq. (18): g(Y) = (I − P)(Y − shift) is eq. (19) in the variable
    # Y = A^-1(X). None where eq. (5) applies.
    penalty: Penalty | None = None
    shift: np.ndarray | float = 0.0  # bias of the layer before (n,), or 0

    def residuals(self, y: np.ndarray) -> Residuals:
        """Both residual vectors at Y, the second 0 without a penalty."""
        first = self.system.apply(self.activation.forward(y)) - self.values
        return first, self.penalty(y - self.shift) if self.penalty else 0.0

    def gradient(self, y: np.ndarray, residuals: Residuals) -> np.ndarray:
        """Half of dF/dY (n,)."""
        return self.activation.derivative(y) * self.system.adjoint(residuals[0]) + residuals[1]

    def start_value(self, y: np.ndarray) -> float:
        """Return F at the start; `NumericsError` if it is not finite there."""
        value = square_sum(self.residuals(y))
        if not np.isfinite(value):
            raise NumericsError(
                "COPA's objective is not finite at its start; choose a smaller hidden_spread."
            )
        return value


@dataclass(frozen=True)
class Minimum:
    """Result of a minimisation: Y, F along the way, inner steps, stopping reason."""

    y: np.ndarray
    trace: tuple[float, ...]
    iterations: int
    stop: str


def square_sum(residuals: Residuals) -> float:
    """F from its residual vectors."""
    return float(sum(np.sum(np.square(r)) for r in residuals))


def lbfgs(problem: LayerProblem, start: np.ndarray, iterations: int) -> Minimum:
    """Minimise F by SciPy's L-BFGS-B; stops ``converged``, ``iteration limit``, ``line search``."""
    trace = [problem.start_value(start)]

    def value_and_gradient(y: np.ndarray) -> tuple[float, np.ndarray]:
        residuals = problem.residuals(y)
        return square_sum(residuals), 2.0 * problem.gradient(y, residuals)

    options = {"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": 20}
    found = minimize(
        value_and_gradient,
        start,
        jac=True,
        method="L-BFGS-B",
        callback=lambda intermediate_result: trace.append(float(intermediate_result.fun)),
        options={**options, "ftol": 1e-15, "gtol": 1e-10},
    )
    stop = {0: "converged", 1: "iteration limit"}.get(found.status, "line search")
    return Minimum(found.x, tuple(trace), int(found.nit), stop)


def adam(problem: LayerProblem, start: np.ndarray, iterations: int, rate: float = 1e-2) -> Minimum:
    """Minimise F by Adam, which the authors adopted later (BMVC 2022).

    Step k: m and v are running means of the gradient and of its square (decay 0.9 and 0.999),
    Y ← Y − rate · m̂ / (sqrt(v̂) + 1e-8).
    """
    y, mean, square = start.copy(), np.zeros_like(start), np.zeros_like(start)
    trace = [problem.start_value(start)]
    for k in range(1, iterations + 1):
        gradient = 2.0 * problem.gradient(y, problem.residuals(y))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        y -= rate * (mean / (1 - 0.9**k)) / (np.sqrt(square / (1 - 0.999**k)) + 1e-8)
        if k % 100 == 0 or k == iterations:
            trace.append(square_sum(problem.residuals(y)))
    return Minimum(y, tuple(trace), iterations, "iteration limit")


def levenberg_marquardt(problem: LayerProblem, start: np.ndarray, iterations: int) -> Minimum:
    """Minimise F by Levenberg-Marquardt with truncated conjugate gradients.

    A step s solves (JᵀJ + mu·I) s = −Jᵀr with JᵀJ = D UᵀU D + (I − P), D = diag(a'(Y)), no more
    accurately than the objective has fallen (a forcing term as in inexact Newton methods). mu
    follows the success of the last step. Stopping reasons: ``tolerance`` (F below 1e-20 of its
    start), ``stalled`` (an accepted step lowered F by less than 1e-6 of itself), ``no descent`` or
    ``iteration limit``.
    """
    y, damping, steps = start.copy(), INITIAL_DAMPING, 0
    first = value = problem.start_value(start)
    residuals = problem.residuals(y)
    trace, stop = [value], "iteration limit"
    for _ in range(iterations):
        if value <= TOLERANCE * first:
            stop = "tolerance"
            break
        forcing = min(0.1, float(np.sqrt(value / first)))
        step, used = _damped_step(problem, y, residuals, damping, forcing)
        steps += used
        candidate = problem.residuals(y + step)
        new = square_sum(candidate)
        if not new < value:
            damping *= 8.0
            if damping > 1e12:
                stop = "no descent"
                break
            continue
        fall = (value - new) / value
        y, residuals, value = y + step, candidate, new
        damping = max(damping / 5.0, 1e-12)
        trace.append(value)
        if fall < STALL:
            stop = "stalled"
            break
    return Minimum(y, tuple(trace), steps, stop)


def _damped_step(
    problem: LayerProblem, y: np.ndarray, residuals: Residuals, damping: float, forcing: float
) -> tuple[np.ndarray, int]:
    """Solve (JᵀJ + damping·I) s = −Jᵀr by CG, to `forcing` times the first residual."""
    slope = problem.activation.derivative(y)
    system, penalty = problem.system, problem.penalty

    def normal(v: np.ndarray) -> np.ndarray:
        out = slope * system.normal(slope * v) + damping * v
        return out + penalty(v) if penalty else out

    residual = -problem.gradient(y, residuals)
    step = np.zeros_like(y)
    search = residual.copy()
    energy = first = float(residual @ residual)
    for k in range(INNER_STEPS):
        if energy <= forcing**2 * first:
            return step, k
        image = normal(search)
        alpha = energy / float(search @ image)
        step += alpha * search
        residual = residual - alpha * image
        energy, previous = float(residual @ residual), energy
        search = residual + (energy / previous) * search
    return step, INNER_STEPS


OPTIMISERS: dict[str, Callable[[LayerProblem, np.ndarray, int], Minimum]] = {
    "lbfgs": lbfgs,
    "levenberg_marquardt": levenberg_marquardt,
    "adam": adam,
}
