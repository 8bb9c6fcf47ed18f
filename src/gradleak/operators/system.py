"""U = [W; K], the linear system of one convolutional layer (COPA eq. 4; R-GAP section 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from gradleak.errors import NumericsError
from gradleak.operators import gram
from gradleak.operators.base import Operator
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint

# Relative to the largest singular value, after each row of K was scaled to length 1. In the
# layers measured, true directions lie above 1e-7 and the dependencies of docs/rank.md below 1e-13.
RANK_TOLERANCE = 1e-10
# With fewer unknowns or rows than this, U itself is decomposed.
DENSE_LIMIT = 400
DENSE_BYTES = 4 * 2**30
# Largest number of rows of K for decomposing its part on W's kernel.
KERNEL_ROWS = 1000
# Relative error of a solve inside Lanczos, in the norm of U, and so of the eigenvalue found.
INNER = 1e-4
# The damped factor resolves singular values whose squares are this many times its damping.
ABOVE_DAMPING = 100.0
# Largest number of unknowns to decompose U for a smallest singular value the factor misses.
DENSE_CONDITION = 3000


@dataclass(frozen=True)
class Solution:
    """A least-squares solution of U x = V."""

    x: np.ndarray  # the solution (n,): of all minimisers, the one nearest to the start
    residual: float  # ||U x − V||
    iterations: int  # steps of the solver; 0 for a direct solve
    # ``direct``, ``converged``, ``stalled`` (only rounding errors are left) or ``iteration limit``.
    stop: str


class LayerSystem(Operator):
    """U = [W; K] as an operator with rank, condition number and least-squares solve.

    `keep`, bool (O·P,), marks the rows of W that count, None for all: behind a ReLU an output of 0
    does not determine its linear output, so its row is left out. `pinned`, bool (n,), marks
    unknowns known to be 0, each with a unit row below K; None for none. `weights` are the rows of W
    that count, sparse, and `split` is their number. Five paths, the first that applies. ``column``
    and ``row`` need all rows of W, and a banded factor of W that is cheap:

    * K₀ of full column rank and no weaker than W (``blocks``): U has rank n. Conjugate gradients
      preconditioned with K₀^T K₀, one block for all channels.
    * W of full column rank (``column``): U has rank n. Conjugate gradients on the normal
      equations, preconditioned with the banded Cholesky factor of W^T W.
    * W of full row rank and K of few rows (``row``): rank(U) = m + rank(K (I − W^+ W)), since
      the kernel of U is the part of W's kernel that K does not see. Direct, with a small SVD.
    * few unknowns (``dense``): SVD for the rank, rank-revealing QR for the solution.
    * otherwise (``gram``): Cholesky factor of the structured U^T U, see `gradleak.operators.gram`.
    """

    def __init__(
        self,
        convolution: Convolution,
        gradient: GradientConstraint,
        keep: np.ndarray | None = None,
        pinned: np.ndarray | None = None,
    ) -> None:
        masks = ("keep", keep), ("pinned", pinned)
        for (name, mask), size in zip(masks, convolution.shape, strict=True):
            if mask is not None and (mask.shape != (size,) or mask.dtype != np.bool_):
                raise NumericsError(f"The mask '{name}' must be {size} booleans.")
        self.convolution, self.gradient = convolution, gradient
        self.keep, self.pinned = keep, pinned
        self.weights = convolution.matrix if keep is None else convolution.matrix[keep]
        self.weights_t = convolution.transposed if keep is None else self.weights.T.tocsr()
        self.split = self.weights.shape[0]
        self._unit = self.split + gradient.shape[0]
        units = 0 if pinned is None else int(pinned.sum())
        self.shape = (self._unit + units, convolution.shape[1])

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return U x = [W x; K x], followed by the pinned unknowns."""
        parts = [self.weights @ x, self.gradient.apply(x)]
        if self.pinned is not None:
            parts.append(x[self.pinned])
        return np.concatenate(parts)

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Return U^T y."""
        out = self.weights_t @ y[: self.split]
        out += self.gradient.adjoint(y[self.split : self._unit])
        if self.pinned is not None:
            out[self.pinned] += y[self._unit :]
        return out

    def dense(self) -> np.ndarray:
        """Return U (m + |W|, n); `NumericsError` if it would take more than `DENSE_BYTES`."""
        if 8 * self.shape[0] * self.shape[1] > DENSE_BYTES:
            raise NumericsError(
                f"U, {self.shape[0]} x {self.shape[1]}, is too large for a dense matrix; use a "
                "smaller input or fewer filters."
            )
        parts = [self.weights.toarray(), self.gradient.dense()]
        if self.pinned is not None:
            parts.append(np.eye(self.shape[1])[self.pinned])
        return np.concatenate(parts)

    @cached_property
    def path(self) -> str:
        """``column``, ``row``, ``dense``, ``blocks`` or ``gram``, see the class."""
        w = self.convolution
        large = min(self.shape) > DENSE_LIMIT
        if large and self._blocks.condition <= gram.BLOCK_CONDITION:
            return "blocks"
        plain = self.keep is None and self.pinned is None
        few = w.is_tall or self.gradient.shape[0] <= KERNEL_ROWS
        if plain and few and w.factor_pays and w.factor is not None:
            return "column" if w.is_tall else "row"
        return "gram" if large else "dense"

    @cached_property
    def _blocks(self) -> gram.ChannelBlocks:
        return gram.ChannelBlocks(self.gradient, self.weights, self.weights_t)

    def _normal_factor(self) -> gram.NormalFactor:
        parts = (self.convolution, self.gradient, self.keep, self.pinned)
        return gram.NormalFactor(gram.normal_matrix(*parts))

    @cached_property
    def _factor(self) -> gram.NormalFactor:
        return self._normal_factor()

    @cached_property
    def _row_lengths(self) -> np.ndarray:
        channels = self.convolution.conv_shape.channels
        each = np.linalg.norm(self.gradient.block, axis=2)[:, None, :]
        lengths = each.repeat(channels, axis=1).ravel()
        return np.where(lengths > 0, lengths, 1.0)

    def _filter_factors(self, factor: float) -> np.ndarray:
        """Factors (O,) that make rows of K `factor` times as long as W's, filter by filter."""
        lengths = np.linalg.norm(self.gradient.delta, axis=1)
        row = float(np.linalg.norm(self.convolution.weight)) / np.sqrt(lengths.size)
        return np.where(lengths > 0, factor * row / np.where(lengths > 0, lengths, 1.0), 1.0)

    def balanced(self, factor: float = 1.0) -> LayerSystem:
        """Scale K's rows, filter by filter, to `factor` times the length of W's."""
        gradient = self.gradient.scaled(self._filter_factors(factor))
        return LayerSystem(self.convolution, gradient, self.keep, self.pinned)

    def balance(self, values: np.ndarray, factor: float = 1.0) -> tuple[LayerSystem, np.ndarray]:
        """Return `balanced` and its right-hand side.

        It has the rank of U, and the same solution if `values` is consistent. If V has only
        rounding errors in proportion to each row, small gradients are thereby weighted by their
        accuracy.
        """
        factors, scaled = self._filter_factors(factor), values.copy()
        rows = scaled[self.split : self._unit].reshape(factors.size, -1)
        rows *= factors[:, None]
        return self.balanced(factor), scaled

    @cached_property
    def _kernel_part(self) -> gram.KernelPart:
        return gram.KernelPart(self.convolution, self.gradient, self._row_lengths, RANK_TOLERANCE)

    @cached_property
    def rank(self) -> int:
        """Numerical rank of U.

        A singular value counts when it exceeds `RANK_TOLERANCE` times the largest, after scaling
        K's rows. Scaling keeps the rank, and gradients are often orders of magnitude smaller than
        weights. Rows get length 1 on the row path, and the length of W's, filter by filter, on the
        paths ``blocks`` and ``gram``. On the dense path the tolerance is max(shape)·eps, NumPy's.
        """
        if self.path == "column":
            return self.shape[1]
        if self.path == "row":
            return self.split + int(self._kernel_part.values.size)
        if self.path == "dense":
            matrix = self.dense()
            matrix[self.split : self._unit] /= self._row_lengths[:, None]
            values = linalg.svdvals(matrix, overwrite_a=True, check_finite=False)
            return int(np.sum(values > max(self.shape) * np.finfo(float).eps * values[0]))
        scaled = self.balanced()
        if scaled.path == "blocks":
            return self.shape[1]
        return scaled._gram_rank()

    def _gram_rank(self) -> int:
        """Unknowns minus the singular values below the tolerance, found from below."""
        factor, n = self._factor, self.shape[1]
        limit = RANK_TOLERANCE * gram.largest_singular_value(self.normal, n)
        # A null vector whose last entries are small leaves no small pivot.
        if not factor.suspects and gram.lowest_singular_values(self, factor, 1, limit)[0] > limit:
            return n
        count = factor.suspects + max(10, factor.suspects // 20)
        while True:
            count = min(n, count)
            values = gram.lowest_singular_values(self, factor, count, limit)
            if values[-1] > limit or count == n:
                return n - int(np.sum(values <= limit))
            count *= 2

    def condition(self, padding: str = "known") -> float:
        """Return the largest over the smallest non-zero singular value of U, unscaled.

        Padded pixels are ``known`` zeros that are left out, or ``unknowns``, each with a row that
        sets it to 0, as in R-GAP's Table 2.

        Raises `NumericsError` if `padding` is neither, or ``unknowns`` is requested for a system
        with pinned unknowns; if U is 0; if K outweighs W so far that rounding hides the smallest
        singular value.
        """
        if padding == "unknowns":
            return self._with_padding().condition()
        if padding != "known":
            raise NumericsError(f"padding is '{padding}'; choose known or unknowns.")
        if not (self.weights.data.any() or self.gradient.block.any() or self.pinned is not None):
            raise NumericsError("U is 0, so it has no condition number.")
        if min(self.shape) <= DENSE_LIMIT:
            values = linalg.svdvals(self.dense(), overwrite_a=True, check_finite=False)
            return float(values[0] / values[self.rank - 1])
        if self.path == "column":
            found = self._column_condition()
            return self._full_rank_condition() if found is None else found
        factor = self._normal_factor()
        missing = self.shape[1] - self.rank if factor.suspects else 0
        lowest = gram.lowest_singular_values(self, factor, missing + 1)[-1]
        return float(gram.largest_singular_value(self.normal, self.shape[1], 200) / lowest)

    def _column_condition(self) -> float | None:
        """Both ends of the spectrum by Lanczos; None where conjugate gradients do not converge.

        They solve N x = v for N = U^T U, preconditioned with M = W^T W <= N. Where their residual r
        has r^T M^-1 r <= INNER² v^T x, the error of x is at most INNER ||x|| in the norm of N, as
        N^-1 <= M^-1 and v^T x <= v^T N^-1 v.
        """
        factor = self.convolution.factor
        assert factor is not None
        size = self.shape[1]
        start = np.random.default_rng(0).standard_normal(size)
        options = {"k": 1, "tol": 1e-3, "v0": start, "return_eigenvectors": False}
        normal = LinearOperator((size, size), self.normal, dtype=float)

        def inverse(v: np.ndarray) -> np.ndarray:
            floor = 1e-20 * float(v @ factor.solve(v))
            x = gram.conjugate_gradients(self, factor.solve, v, floor, 200)[0]
            rest = v - self.normal(x)
            if float(rest @ factor.solve(rest)) > INNER**2 * float(v @ x):
                raise _Unsolved
            return x

        inverted = LinearOperator((size, size), inverse, dtype=float)
        try:
            return float(np.sqrt(eigsh(normal, **options)[0] * eigsh(inverted, **options)[0]))
        except (_Unsolved, ArpackNoConvergence):
            return None

    def _full_rank_condition(self) -> float:
        """Condition number of U of full column rank by the factor of U^T U, else by its SVD."""
        size = self.shape[1]
        if 8 * size * size <= gram.MATRIX_BYTES:
            factor = self._normal_factor()
            lowest = float(gram.lowest_singular_values(self, factor, 1)[0])
            if lowest**2 >= ABOVE_DAMPING * factor.damping:
                return gram.largest_singular_value(self.normal, size, 200) / lowest
        if size > DENSE_CONDITION:
            raise NumericsError(
                f"dJ/dZ outweighs the weights so far that the smallest of {size} singular values "
                "is lost in rounding; scale dJ/dZ down."
            )
        values = linalg.svdvals(self.dense(), overwrite_a=True, check_finite=False)
        return float(values[0] / values[-1])

    def _with_padding(self) -> LayerSystem:
        """A = [W; K; E]: padded pixels are unknowns, E has a unit row for each."""
        shape = self.convolution.conv_shape
        if self.pinned is not None:
            raise NumericsError("Padded pixels cannot be added to a system that pins unknowns.")
        (down, across), (height, width) = shape.padding, shape.size
        size = (height + 2 * down, width + 2 * across)
        wide = replace(shape, padding=(0, 0), size=size)
        outside = np.ones((shape.channels, *size), dtype=bool)
        outside[:, down : down + height, across : across + width] = False
        delta = self.gradient.delta.reshape(shape.filters, *shape.output)
        return LayerSystem(
            Convolution(self.convolution.weight, wide),
            GradientConstraint(delta, wide),
            self.keep,
            outside.ravel() if outside.any() else None,
        )

    def solve(self, values: np.ndarray, start: np.ndarray | None = None) -> Solution:
        """Return the least-squares solution of U x = `values` that is nearest to `start`.

        `values` is V: the kept rows of z, dJ/dW, and a 0 for each pinned unknown. `start` (n,) is
        zero by default, which gives R-GAP's minimum-norm solution x = U^+ V. Any other start x₀
        gives x₀ + U^+ (V − U x₀), the limit of gradient descent on ||U x − V||² from x₀.
        """
        begin = np.zeros(self.shape[1]) if start is None else start.astype(np.float64)
        step, iterations, stop = self._step(values - self.apply(begin))
        x = begin + step
        return Solution(x, float(np.linalg.norm(self.apply(x) - values)), iterations, stop)

    def _step(self, values: np.ndarray) -> tuple[np.ndarray, int, str]:
        """Return U^+ `values`, steps and stopping reason, on the path of this layer."""
        if self.path == "column":
            factor = self.convolution.factor
            assert factor is not None
            first = factor.solve(self.convolution.adjoint(values[: self.split]))
            found = gram.refined_solve(self, factor.solve, values, first)
            if found[2] == "converged" or self.shape[1] <= DENSE_LIMIT:
                return found
        if self.path == "row":
            return self._kernel_part.solve(self, values), 0, "direct"
        if self.path == "dense":
            cond = max(self.shape) * np.finfo(float).eps
            options = {"lapack_driver": "gelsy", "overwrite_a": True, "check_finite": False}
            return linalg.lstsq(self.dense(), values, cond=cond, **options)[0], 0, "direct"
        if self.path == "blocks":
            found = gram.refined_solve(self, self._blocks.solve, values, np.zeros(self.shape[1]))
            if found[2] == "converged":
                return found
        return gram.proximal_solve(self, self._factor, values)


class _Unsolved(Exception):
    """Conjugate gradients ended without a solution."""
