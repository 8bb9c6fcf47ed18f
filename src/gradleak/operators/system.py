"""U = [W; K], the linear system of one convolutional layer (COPA eq. 4; R-GAP section 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from gradleak.errors import NumericsError
from gradleak.operators import gram, limits
from gradleak.operators.base import Operator
from gradleak.operators.convolution import Convolution, Rows
from gradleak.operators.estimates import Estimate, estimate
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.grid_factor import GridFactor

# Relative to the largest singular value, after each row of K was scaled to length 1. In the
# layers measured, true directions lie above 1e-7 and the dependencies of docs/rank.md below 1e-13.
RANK_TOLERANCE = 1e-10
# With fewer unknowns or rows than this, U itself is decomposed.
DENSE_LIMIT = 400
DENSE_BYTES = 4 * 2**30
# Operations of a dense factor, a few seconds, that are not worth a comparison.
QUICK = 1e11
# A `GridFactor` has to take this many times fewer operations than a dense one: it has small blocks.
FASTER = 4
# Steps of conjugate gradients to rounding, by the square root of the condition number.
CG_STEPS = 17.0
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
    estimate: Estimate  # what its path takes, see `LayerSystem`
    given_up: str = ""  # path tried before, whose conjugate gradients did not converge


class LayerSystem(Operator):
    """U = [W; K] as an operator with rank, condition number and least-squares solve.

    `keep`, bool (O·P,), marks the rows of W that count, None for all: behind a ReLU an output of 0
    does not determine its linear output, so its row is left out. `pinned`, bool (n,), marks
    unknowns known to be 0, each with a unit row below K; None for none. `split` is the number of
    rows of W that count. Six paths, the first that applies. ``column``, ``row`` and ``damped`` need
    all rows of W:

    * K₀ of full column rank and no weaker than W (``blocks``): U has rank n. Conjugate gradients
      preconditioned with K₀^T K₀, one block for all channels.
    * W of full column rank (``column``): U has rank n. Conjugate gradients on the normal
      equations, preconditioned with the Cholesky factor of W^T W: banded if that is cheap, else a
      `GridFactor` where it and the expected steps take fewer operations than ``gram``.
    * W of full row rank and K of few rows (``row``): rank(U) = m + rank(K (I − W^+ W)), since
      the kernel of U is the part of W's kernel that K does not see. Direct, with a small SVD.
    * few unknowns (``dense``): SVD for the rank, rank-revealing QR for the solution.
    * W tall, and U^T U too large (``damped``): as ``column``, a little added to W^T W; the rank is
      not known.
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
        self.weights = Rows(convolution, keep)
        self.split = self.weights.shape[0]
        self._unit = self.split + gradient.shape[0]
        units = 0 if pinned is None else int(pinned.sum())
        self.shape = (self._unit + units, convolution.shape[1])

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return U x = [W x; K x], followed by the pinned unknowns."""
        parts = [self.weights.apply(x), self.gradient.apply(x)]
        if self.pinned is not None:
            parts.append(x[self.pinned])
        return np.concatenate(parts)

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Return U^T y."""
        out = self.weights.adjoint(y[: self.split])
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
        parts = [self.weights.dense(), self.gradient.dense()]
        if self.pinned is not None:
            parts.append(np.eye(self.shape[1])[self.pinned])
        return np.concatenate(parts)

    @cached_property
    def path(self) -> str:
        """``blocks``, ``column``, ``row``, ``dense``, ``damped`` or ``gram``, see the class."""
        w = self.convolution
        large = min(self.shape) > DENSE_LIMIT
        if large and self._blocks.condition <= gram.BLOCK_CONDITION:
            return "blocks"
        plain = self.keep is None and self.pinned is None
        few = w.is_tall or self.gradient.shape[0] <= limits.KERNEL_ROWS
        if plain and few and w.band_pays and w.factor is not None:
            return "column" if w.is_tall else "row"
        if large and plain and not w.band_pays and w.grid_fits(np.float32):
            return self._by_cost()
        return "gram" if large else "dense"

    def _by_cost(self) -> str:
        """Path of a large layer whose W may have full column rank, by operations and bytes."""
        w, n = self.convolution, self.shape[1]
        cost, dense = w.dissection.cost, n**3 / 3
        fits = n <= limits.MOST_DENSE
        if dense < QUICK or (fits and FASTER * cost.operations > dense):
            return "gram"
        if w.factor is None:
            return "gram" if fits or not w.grid_fits(np.float64) else "damped"
        strength = gram.largest_singular_value(self.gradient.normal, n, 15) ** 2
        steps = CG_STEPS * np.sqrt(1.0 + strength / w.eigenvalues[1])
        each = cost.solve + 4.0 * (w.entries + w.conv_shape.channels * self.gradient.block.size)
        return "gram" if fits and steps * each > dense else "column"

    @cached_property
    def _damped(self) -> GridFactor:
        damping = gram.DAMPING * float(np.square(self.convolution.weight).sum())
        factor = self.convolution.grid_factor(np.float64, damping)
        assert factor is not None
        return factor

    @cached_property
    def _blocks(self) -> gram.ChannelBlocks:
        return gram.ChannelBlocks(self.gradient, self.weights)

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
        return self._scaled(self._filter_factors(factor))

    def _scaled(self, factors: np.ndarray) -> LayerSystem:
        gradient = self.gradient.scaled(factors)
        return LayerSystem(self.convolution, gradient, self.keep, self.pinned)

    def balance(self, values: np.ndarray, factor: float = 1.0) -> tuple[LayerSystem, np.ndarray]:
        """Return `balanced` and its right-hand side.

        It has the rank of U, and the same solution if `values` is consistent. If V has only
        rounding errors in proportion to each row, small gradients are thereby weighted by their
        accuracy. In a large layer that W alone determines, no filter's rows get more weight than
        their errors allow, see `_trusted`.
        """
        factors, scaled = self._filter_factors(factor), values.copy()
        if self.path == "column" and isinstance(self.convolution.factor, GridFactor):
            factors = np.minimum(factors, self._trusted(values))
        rows = scaled[self.split : self._unit].reshape(factors.size, -1)
        rows *= factors[:, None]
        return self._scaled(factors), scaled

    def _trusted(self, values: np.ndarray) -> np.ndarray:
        """Ratios (O,) of the error of W's rows to that of K's rows, filter by filter.

        At x = W^+ Z, W's rows leave ||W x − Z||² / (m − n), and K's what they do not fit: where a
        value of Z near 0 has the wrong sign, a kinked activation's slope there is wrong, and so are
        a filter's dJ/dZ and all its rows.
        """
        z, gradient = values[: self.split], values[self.split : self._unit]
        x = self.convolution.solve(z)
        spare = self.split - self.shape[1]
        if not spare:
            return np.full(self.gradient.delta.shape[0], np.inf)
        own = float(np.sum(np.square(self.convolution.apply(x) - z))) / spare
        misfit = np.square(self.gradient.apply(x) - gradient).reshape(len(self.gradient.delta), -1)
        errors = misfit.mean(axis=1)
        ratios = np.sqrt(own / np.where(errors > 0.0, errors, 1.0))
        return np.where(errors > 0.0, ratios, np.inf)

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
        return self.shape[1] if scaled.path == "blocks" else scaled._gram_rank()

    def _gram_rank(self) -> int:
        """Unknowns minus the singular values below the tolerance, found from below."""
        factor, n = self._factor, self.shape[1]
        if not factor.suspects:
            return n
        limit = RANK_TOLERANCE * gram.largest_singular_value(self.normal, n)
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
        if not (self.weights.square() or self.gradient.block.any() or self.pinned is not None):
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
        if size <= limits.MOST_DENSE:
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
        right, path, given_up = values - self.apply(begin), self.path, ""
        step, iterations, stop = self._step(right)
        fits = DENSE_LIMIT < self.shape[1] <= limits.MOST_DENSE
        if fits and path in ("blocks", "column") and stop != "converged":
            path, given_up = "gram", path
            step, iterations, stop = gram.proximal_solve(self, self._factor, right)
        x = begin + step
        residual = float(np.linalg.norm(self.apply(x) - values))
        told = estimate(self.convolution, self.gradient, self.shape, path)
        return Solution(x, residual, iterations, stop, told, given_up)

    def _step(self, values: np.ndarray) -> tuple[np.ndarray, int, str]:
        """Return U^+ `values`, steps and stopping reason, on the path of this layer."""
        if self.path == "column":
            factor = self.convolution.factor
            assert factor is not None
            first = factor.solve(self.convolution.adjoint(values[: self.split]))
            return gram.refined_solve(self, factor.solve, values, first)
        if self.path == "damped":
            first = np.zeros(self.shape[1])
            return gram.refined_solve(self, self._damped.solve, values, first)
        if self.path == "row":
            return self._kernel_part.solve(self, values), 0, "direct"
        if self.path == "dense":
            cond = max(self.shape) * np.finfo(float).eps
            options = {"lapack_driver": "gelsy", "overwrite_a": True, "check_finite": False}
            return linalg.lstsq(self.dense(), values, cond=cond, **options)[0], 0, "direct"
        if self.path == "blocks":
            return gram.refined_solve(self, self._blocks.solve, values, np.zeros(self.shape[1]))
        return gram.proximal_solve(self, self._factor, values)


class _Unsolved(Exception):
    """Conjugate gradients ended without a solution."""
