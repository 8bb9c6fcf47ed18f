"""Layers too large for a dense U: U^T U by structure, its factor, K by channel or on W's kernel.

U^T U = W^T W + I_C ⊗ K₀^T K₀ needs one n x n matrix. W^T W is a sum over output positions of the
same small matrix, the filters' inner products, and K₀ has one column per pixel of one channel.
"""

from collections.abc import Callable

import numpy as np
from scipy import linalg
from scipy.linalg import lapack

from gradleak.errors import NumericsError
from gradleak.operators import limits
from gradleak.operators.base import Operator
from gradleak.operators.convolution import Convolution, Rows
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import patch_indices

# Added to U^T U relative to its largest diagonal entry. Rounding leaves about eps / DAMPING of x in
# the null space, and directions below sqrt(DAMPING) of the largest singular value converge slowly.
DAMPING = 1e-12
# A pivot below this many times the damping may stand for a dependent column.
SUSPECT = 1e6
STEPS = 60
STEP_TOLERANCE = 1e-13
# Order of the filter that removes the null space: it changes a direction with singular value s by
# (damping / s²)^FILTER.
FILTER = 4
# Bound on the condition number up to which the blocks of K₀ alone precondition U^T U.
BLOCK_CONDITION = 100.0
# Square of the relative error, in the norm of the preconditioner, at which a solve ends.
CG_TOLERANCE = 1e-30
RITZ_TOLERANCE = 1e-3
RITZ_ROUNDS = 30

Map = Callable[[np.ndarray], np.ndarray]


def normal_matrix(
    convolution: Convolution,
    gradient: GradientConstraint,
    keep: np.ndarray | None = None,
    pinned: np.ndarray | None = None,
) -> np.ndarray:
    """Return U^T U (n, n) in float64, U = [W of the rows `keep`; K; unit rows of `pinned`].

    Both are masks as of `LayerSystem`. Raises `NumericsError` if the matrix would take more than
    `limits.MATRIX_BYTES`.
    """
    shape = convolution.conv_shape
    n, pixels = shape.unknowns, shape.size[0] * shape.size[1]
    if 8 * n * n > limits.MATRIX_BYTES:
        raise NumericsError(
            f"A layer of {n} unknowns needs a matrix of {8 * n * n / 2**30:.0f} GiB; use a "
            "smaller input or fewer channels."
        )
    out = np.zeros((n, n))
    indices, valid = patch_indices(shape)
    taps = convolution.weight.reshape(shape.filters, shape.channels, -1)
    kept = None if keep is None else keep.reshape(shape.filters, -1)
    products = np.einsum("ocj,odk->cjdk", taps, taps, optimize=True)
    channel = np.arange(shape.channels)[:, None] * pixels
    for p in range(indices.shape[1]):
        seen = valid[:, p]
        if kept is None:
            part = products[:, seen][:, :, :, seen]
        else:
            chosen = taps[kept[:, p]][:, :, seen]
            chosen = chosen.reshape(chosen.shape[0], shape.channels * int(seen.sum()))
            part = chosen.T @ chosen
        at = (channel + indices[seen, p]).ravel()
        out[at[:, None], at] += part.reshape(at.size, at.size)
    block = gradient.block.reshape(-1, pixels)
    inner = block.T @ block
    for first in range(0, n, pixels):
        out[first : first + pixels, first : first + pixels] += inner
    if pinned is not None:
        out[pinned, pinned] += 1.0
    return out


class NormalFactor:
    """Cholesky factor of N + damping·I for N = U^T U (n, n), which it overwrites.

    `damping` is `DAMPING` times the largest diagonal entry of N, more only if N is too far from
    positive semidefinite by rounding. `suspects` counts the pivots below `SUSPECT` times the
    damping: about the dimension of the null space, less where a null vector's last entries are
    small, but at least 1 where there is one.
    """

    def __init__(self, matrix: np.ndarray) -> None:
        diagonal = matrix.diagonal().copy()
        largest = float(diagonal.max(initial=0.0)) or 1.0
        self.damping = DAMPING * largest
        index = np.arange(diagonal.size)
        # LAPACK reads and writes the lower triangle of the transpose: the strict lower triangle
        # of `matrix` survives, so a failed attempt can be repeated.
        while True:
            matrix[index, index] = diagonal + self.damping
            factor, failed = lapack.dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
            if not failed:
                break
            self.damping *= 10.0
            upper = np.triu_indices(diagonal.size, 1)
            matrix[upper] = matrix.T[upper]
        self._factor = factor
        self.suspects = int(np.sum(factor.diagonal() ** 2 < SUSPECT * self.damping))
        if not self.suspects and self._meets_null_space():
            self.suspects = 1

    def _meets_null_space(self) -> bool:
        """True if N has a null space, of which no small pivot needs to tell.

        The part of a vector in it comes back as 1/damping of itself. Of n unknowns a vector drawn
        at random misses it with a probability of about sqrt(n)/`SUSPECT`, three in its third power.
        """
        drawn = np.random.default_rng(0).standard_normal((self._factor.shape[0], 3))
        back = self.damping * np.linalg.norm(self.solve(drawn), axis=0)
        return bool((SUSPECT * back > np.linalg.norm(drawn, axis=0)).any())

    def solve(self, rhs: np.ndarray) -> np.ndarray:
        """Return (N + damping·I)^-1 rhs for rhs (n,) or (n, r)."""
        return lapack.dpotrs(self._factor, rhs, lower=1)[0]


def proximal_solve(
    system: Operator, factor: NormalFactor, values: np.ndarray
) -> tuple[np.ndarray, int, str]:
    """Return U^+ `values` by x ← x + (N + damping·I)^-1 U^T (values − U x).

    Each step divides the error along a singular vector by 1 + s²/damping. Where N may be
    singular, rounding errors in its null space, which no later step would see, are filtered out.
    Also returns the number of steps and the stopping reason: ``converged``, ``stalled`` (only
    rounding errors are left) or ``iteration limit``.
    """
    x = np.zeros(system.shape[1])
    total = 0
    for _ in range(2 if factor.suspects else 1):
        size, stop = np.inf, "iteration limit"
        for _ in range(STEPS):
            step = factor.solve(system.adjoint(values - system.apply(x)))
            x += step
            total += 1
            size, last = float(np.linalg.norm(step)), size
            if size <= STEP_TOLERANCE * float(np.linalg.norm(x)):
                stop = "converged"
                break
            if size > 0.9 * last:
                stop = "stalled"
                break
        if factor.suspects:
            x = _without_null_space(system, factor, x)
    return x, total, stop


def _without_null_space(system: Operator, factor: NormalFactor, x: np.ndarray) -> np.ndarray:
    """Return (I − (I − A)^FILTER) x; A = N (N + damping·I)^-1 keeps what U sees."""
    out = np.zeros_like(x)
    for _ in range(FILTER):
        out += system.normal(factor.solve(x - out))
    return out


def lowest_singular_values(
    system: Operator, factor: NormalFactor, count: int, floor: float = 0.0
) -> np.ndarray:
    """Return the `count` smallest singular values of U, ascending, by block inverse iteration.

    Each is ||U v|| for a Ritz vector v, which resolves values far below the square root of
    rounding. Ends when the largest changes by at most `RITZ_TOLERANCE` of itself, or is at most
    `floor`.
    """
    n = system.shape[1]
    width = min(n, count + max(10, count // 10))
    basis = linalg.qr(np.random.default_rng(0).standard_normal((n, width)), mode="economic")[0]
    found = np.zeros(width)
    for round_ in range(RITZ_ROUNDS):
        basis = linalg.qr(factor.solve(basis), mode="economic", overwrite_a=True)[0]
        if round_ < 2:
            continue
        image = np.stack([system.apply(column) for column in basis.T], axis=1)
        left = linalg.qr(image, mode="r", overwrite_a=True)[0][:width]
        _, values, rotation = linalg.svd(left)
        # Fewer rows than vectors: the remaining vectors lie in the null space.
        values = np.concatenate([values, np.zeros(width - values.size)])
        previous, found = found, values[::-1]
        top, before = found[count - 1], previous[count - 1]
        if top <= floor or abs(top - before) <= RITZ_TOLERANCE * top:
            break
        basis = basis @ rotation.T
    return found[:count]


def largest_singular_value(normal: Map, unknowns: int, steps: int = 60) -> float:
    """Estimate ||U|| from `normal`, U^T U, from below: 60 power steps give about 1 %, 15 10 %."""
    v = np.random.default_rng(0).standard_normal(unknowns)
    size = 0.0
    for _ in range(steps):
        v = normal(v / np.linalg.norm(v))
        size = float(np.linalg.norm(v))
        if size == 0.0:
            break
    return float(np.sqrt(size))


class ChannelBlocks:
    """(I_C ⊗ B)^-1 with B = K₀^T K₀ + mean of diag(W^T W), as a preconditioner of U^T U.

    `condition` bounds the condition number of U^T U preconditioned with it; it is infinite, and
    there are no blocks, where K₀ does not have full column rank.
    """

    def __init__(self, gradient: GradientConstraint, rows: Rows) -> None:
        block = gradient.block.reshape(-1, gradient.block.shape[2])
        self.condition = float("inf")
        if block.shape[0] < block.shape[1]:
            return
        values, vectors = linalg.eigh(block.T @ block)
        least, unknowns = float(values[0]), gradient.shape[1]
        if least > 1e-12 * float(values[-1]):
            norm = largest_singular_value(rows.normal, unknowns, 15)
            mean = rows.square() / unknowns
            self._inverse = (vectors / (values + mean)) @ vectors.T  # B^-1 (H·W, H·W)
            self.condition = (norm**2 + least) / least

    def solve(self, rhs: np.ndarray) -> np.ndarray:
        """Return (I ⊗ B)^-1 rhs for rhs (n,)."""
        return (rhs.reshape(-1, self._inverse.shape[0]) @ self._inverse).ravel()


def conjugate_gradients(
    system: Operator, precondition: Map, rhs: np.ndarray, floor: float, limit: int = 500
) -> tuple[np.ndarray, int, str]:
    """Solve U^T U x = rhs by M^-1 = `precondition` to r^T M^-1 r <= `floor`, or `limit` steps."""
    x = np.zeros_like(rhs)
    residual = rhs.copy()
    search = z = precondition(residual)
    energy = float(residual @ z)
    for k in range(limit):
        if energy <= floor:
            return x, k, "converged"
        image = system.apply(search)
        alpha = energy / float(image @ image)
        x += alpha * search
        residual = residual - alpha * system.adjoint(image)
        z = precondition(residual)
        energy, previous = float(residual @ z), energy
        search = z + (energy / previous) * search
    return x, limit, "iteration limit"


def refined_solve(
    system: Operator, precondition: Map, values: np.ndarray, first: np.ndarray
) -> tuple[np.ndarray, int, str]:
    """Least squares for U of full column rank: up to 3 rounds on the residual, from `first`."""
    x = first
    rhs = system.adjoint(values)
    floor = CG_TOLERANCE * float(rhs @ precondition(rhs))
    iterations, stop = 0, "converged"
    for _ in range(3):
        residual = system.adjoint(values - system.apply(x))
        step, count, stop = conjugate_gradients(system, precondition, residual, floor)
        x = x + step
        iterations += count
        # If the first guess determines x, later rounds have nothing to do.
        if count == 0:
            break
    return x, iterations, stop


def thin_svd(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thin SVD; by QR where divide and conquer fails, as with many equal singular values."""
    try:
        return linalg.svd(matrix, full_matrices=False, check_finite=False)
    except linalg.LinAlgError:
        return linalg.svd(matrix, full_matrices=False, check_finite=False, lapack_driver="gesvd")


class KernelPart:
    """K on the kernel of a W of full row rank: the gradient's information beyond the weights.

    `lengths` (|W|,) are those of K's rows, 1 for a zero row; singular values below `tolerance` of
    the largest count as 0.
    """

    def __init__(
        self,
        convolution: Convolution,
        gradient: GradientConstraint,
        lengths: np.ndarray,
        tolerance: float,
    ) -> None:
        assert convolution.factor is not None
        self.convolution, self.factor, self.lengths = convolution, convolution.factor, lengths
        scaled = gradient.dense() / lengths[:, None]
        coupling = self.factor.solve(convolution.matrix @ scaled.T)  # (W W^T)^-1 W K^T
        inside = scaled.T - convolution.transposed @ coupling  # (n, |W|)
        basis, values, left_t = thin_svd(inside)
        keep = values > tolerance * max(values.max(initial=0.0), 1.0)
        # Singular triplets (|W|, r), (r,), (n, r) of K (I − W^+ W), K's rows having length 1.
        self.left, self.values, self.basis = left_t[keep].T, values[keep], basis[:, keep]
        null = linalg.qr(self.left)[0][:, self.left.shape[1] :]
        left_null = np.concatenate([-coupling @ null, null / lengths[:, None]])
        # (rows, q), spans the left null space of U
        self.dependencies = linalg.qr(left_null, mode="economic")[0] if null.size else left_null

    def solve(self, system: Operator, values: np.ndarray) -> np.ndarray:
        """Return U^+ `values` for `system` U = [W; K]."""
        split = self.convolution.shape[0]
        x = np.zeros(system.shape[1])
        # The second round is iterative refinement: it removes the squared condition number.
        for _ in range(2):
            rest = values - system.apply(x)
            rest -= self.dependencies @ (self.dependencies.T @ rest)
            step = self.convolution.adjoint(self.factor.solve(rest[:split]))
            missing = (rest - system.apply(step))[split:] / self.lengths
            x += step + self.basis @ ((self.left.T @ missing) / self.values)
        return x
