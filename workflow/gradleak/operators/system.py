"""U = [W; K], the linear system of one convolutional layer (COPA eq. 4; R-GAP section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import LinearOperator, eigsh

from gradleak.errors import NumericsError
from gradleak.operators.base import Operator
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint

# Relative to the largest singular value, after each row of K was scaled to length 1. In the
# layers measured, true directions lie above 1e-7 and the dependencies of docs/rank.md below 1e-13.
RANK_TOLERANCE = 1e-10
DENSE_LIMIT = 2000
DENSE_BYTES = 4 * 2**30
# Square of the relative error, in the norm of the preconditioner, at which a solve ends.
CG_TOLERANCE = 1e-30


@dataclass(frozen=True)
class Solution:
    """A least-squares solution of U x = V.

    Attributes
    ----------
    x
        The solution (n,): of all minimisers, the one nearest to the start.
    residual
        ||U x − V||.
    iterations
        Conjugate-gradient steps; 0 for a direct solve.
    stop
        ``direct``, ``converged`` or ``iteration limit``.
    """

    x: np.ndarray
    residual: float
    iterations: int
    stop: str


@dataclass(frozen=True)
class _KernelPart:
    """K on the kernel of W: what the gradient tells beyond the weights.

    `basis` (n, r) and `values` (r,) with `left` (|W|, r) are the singular triplets of
    K (I − W^+ W); `dependencies` (rows, q) spans the left null space of U.
    """

    left: np.ndarray
    values: np.ndarray
    basis: np.ndarray
    dependencies: np.ndarray


def thin_svd(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thin SVD by divide and conquer; by QR iteration where that does not converge.

    LAPACK's divide and conquer gives up on some well-conditioned matrices with many equal
    singular values, as layers of one filter size have.
    """
    try:
        return linalg.svd(matrix, full_matrices=False, check_finite=False)
    except linalg.LinAlgError:
        return linalg.svd(matrix, full_matrices=False, check_finite=False, lapack_driver="gesvd")


class LayerSystem(Operator):
    """U = [W; K] as an operator with rank, condition number and least-squares solve.

    Notes
    -----
    Three paths, chosen by W alone:

    * W of full column rank (``column``): U has rank n. Conjugate gradients on the normal
      equations, preconditioned with the banded Cholesky factor of W^T W.
    * W of full row rank (``row``): rank(U) = m + rank(K (I − W^+ W)), since the kernel of U is
      the part of W's kernel that K does not see. Direct, with a small SVD of |W| rows.
    * otherwise (``dense``): SVD for the rank, rank-revealing QR for the solution.
    """

    def __init__(self, convolution: Convolution, gradient: GradientConstraint) -> None:
        self.convolution = convolution
        self.gradient = gradient
        self.split = convolution.shape[0]
        self.shape = (self.split + gradient.shape[0], convolution.shape[1])

    def apply(self, x: np.ndarray) -> np.ndarray:
        """U x = [W x; K x]."""
        return np.concatenate([self.convolution.apply(x), self.gradient.apply(x)])

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """U^T y."""
        return self.convolution.adjoint(y[: self.split]) + self.gradient.adjoint(y[self.split :])

    def dense(self) -> np.ndarray:
        """U (m + |W|, n).

        Raises
        ------
        NumericsError
            If it would take more than `DENSE_BYTES`.
        """
        if 8 * self.shape[0] * self.shape[1] > DENSE_BYTES:
            raise NumericsError(
                f"A layer whose W lacks full rank needs U as a dense matrix, and {self.shape[0]} x "
                f"{self.shape[1]} is too large for that; use a smaller input or fewer filters."
            )
        return np.concatenate([self.convolution.dense(), self.gradient.dense()])

    @property
    def path(self) -> str:
        """``column``, ``row`` or ``dense``: which facts about W the solver rests on."""
        if self.convolution.factor is None:
            return "dense"
        return "column" if self.convolution.is_tall else "row"

    @cached_property
    def _row_lengths(self) -> np.ndarray:
        lengths = np.tile(
            np.linalg.norm(self.gradient.block, axis=2)[:, None, :],
            (1, self.convolution.conv_shape.channels, 1),
        ).ravel()
        return np.where(lengths > 0, lengths, 1.0)

    @cached_property
    def _kernel_part(self) -> _KernelPart:
        factor = self.convolution.factor
        assert factor is not None
        scaled = self.gradient.dense() / self._row_lengths[:, None]
        coupling = factor.solve(self.convolution.matrix @ scaled.T)  # (W W^T)^-1 W K^T
        inside = scaled.T - self.convolution.transposed @ coupling  # (n, |W|)
        basis, values, left_t = thin_svd(inside)
        keep = values > RANK_TOLERANCE * max(values.max(initial=0.0), 1.0)
        left = left_t[keep].T
        null = linalg.qr(left)[0][:, left.shape[1] :]
        below = null / self._row_lengths[:, None]
        left_null = np.concatenate([-coupling @ null, below])
        dependencies = linalg.qr(left_null, mode="economic")[0] if null.size else left_null
        return _KernelPart(left, values[keep], basis[:, keep], dependencies)

    @cached_property
    def rank(self) -> int:
        """Numerical rank of U.

        A singular value counts when it exceeds `RANK_TOLERANCE` times the largest, K's rows
        having been scaled to length 1 (which leaves the rank as it is: gradients are often
        orders of magnitude smaller than weights). On the dense path the tolerance is
        max(shape)·eps, NumPy's.
        """
        if self.path == "column":
            return self.shape[1]
        if self.path == "row":
            return self.split + int(self._kernel_part.values.size)
        matrix = self.dense()
        matrix[self.split :] /= self._row_lengths[:, None]
        values = linalg.svdvals(matrix, overwrite_a=True, check_finite=False)
        return int(np.sum(values > max(self.shape) * np.finfo(float).eps * values[0]))

    def condition(self) -> float:
        """Largest over smallest non-zero singular value of U, unscaled."""
        if self.path != "column" or min(self.shape) <= DENSE_LIMIT:
            values = linalg.svdvals(self.dense(), overwrite_a=True, check_finite=False)
            return float(values[0] / values[self.rank - 1])
        size = self.shape[1]
        options = {
            "k": 1,
            "tol": 1e-3,
            "v0": np.random.default_rng(0).standard_normal(size),
            "return_eigenvectors": False,
        }
        normal = LinearOperator((size, size), lambda v: self.adjoint(self.apply(v)), dtype=float)
        inverse = LinearOperator(
            (size, size), lambda v: self._normal_cg(v, 0.0, 60)[0], dtype=float
        )
        return float(np.sqrt(eigsh(normal, **options)[0] * eigsh(inverse, **options)[0]))

    def solve(self, values: np.ndarray, start: np.ndarray | None = None) -> Solution:
        """Least-squares solution of U x = `values` that is nearest to `start`.

        Parameters
        ----------
        values
            V (m + |W|,).
        start
            (n,), zero unless given: zero yields R-GAP's minimum-norm solution x = U^+ V, any
            other start x₀ yields x₀ + U^+ (V − U x₀), what gradient descent on ||U x − V||²
            from x₀ converges to.
        """
        begin = np.zeros(self.shape[1]) if start is None else start.astype(np.float64)
        target = values - self.apply(begin)
        if self.path == "column":
            step, iterations, stop = self._solve_column(target)
        elif self.path == "row":
            step, iterations, stop = self._solve_row(target), 0, "direct"
        else:
            step, iterations, stop = self._solve_dense(target), 0, "direct"
        x = begin + step
        return Solution(x, float(np.linalg.norm(self.apply(x) - values)), iterations, stop)

    def _solve_row(self, values: np.ndarray) -> np.ndarray:
        factor, part = self.convolution.factor, self._kernel_part
        assert factor is not None
        x = np.zeros(self.shape[1])
        # The second round is iterative refinement: it removes the squared condition number.
        for _ in range(2):
            rest = values - self.apply(x)
            rest -= part.dependencies @ (part.dependencies.T @ rest)
            step = self.convolution.adjoint(factor.solve(rest[: self.split]))
            missing = (rest[self.split :] - self.gradient.apply(step)) / self._row_lengths
            x += step + part.basis @ ((part.left.T @ missing) / part.values)
        return x

    def _solve_column(self, values: np.ndarray) -> tuple[np.ndarray, int, str]:
        factor = self.convolution.factor
        assert factor is not None
        x = factor.solve(self.convolution.adjoint(values[: self.split]))
        rhs = self.adjoint(values)
        floor = CG_TOLERANCE * float(rhs @ factor.solve(rhs))
        iterations = 0
        # Where W alone determines x, rounds after the first find nothing to do.
        for _ in range(3):
            step, count, stop = self._normal_cg(self.adjoint(values - self.apply(x)), floor)
            x += step
            iterations += count
            if count == 0:
                break
        return x, iterations, stop

    def _normal_cg(
        self, rhs: np.ndarray, floor: float, limit: int = 500
    ) -> tuple[np.ndarray, int, str]:
        """Solve U^T U x = rhs by conjugate gradients, preconditioned with W^T W.

        Stops when the residual r has r^T (W^T W)^-1 r <= `floor`.
        """
        factor = self.convolution.factor
        assert factor is not None
        x = np.zeros_like(rhs)
        residual = rhs.copy()
        search = z = factor.solve(residual)
        energy = float(residual @ z)
        for k in range(limit):
            if energy <= floor:
                return x, k, "converged"
            image = self.apply(search)
            alpha = energy / float(image @ image)
            x += alpha * search
            residual = residual - alpha * self.adjoint(image)
            z = factor.solve(residual)
            energy, previous = float(residual @ z), energy
            search = z + (energy / previous) * search
        return x, limit, "iteration limit"

    def _solve_dense(self, values: np.ndarray) -> np.ndarray:
        return linalg.lstsq(
            self.dense(),
            values,
            cond=max(self.shape) * np.finfo(float).eps,
            lapack_driver="gelsy",
            overwrite_a=True,
            check_finite=False,
        )[0]
