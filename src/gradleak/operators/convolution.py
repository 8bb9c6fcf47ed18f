"""The weight constraint: a convolution as a sparse matrix (COPA eq. 1a)."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg import LinAlgError, cho_solve_banded, cholesky_banded
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from gradleak.errors import NumericsError
from gradleak.operators import limits
from gradleak.operators.base import Operator
from gradleak.operators.grid_factor import Dissection, GridFactor
from gradleak.operators.shape import ConvShape, patch_indices

# Above this condition number W counts as rank-deficient and the dense path is used: normal
# equations lose twice the digits, and 1e6 leaves four of float64's sixteen.
CONDITION_LIMIT = 1e6
# Likewise for a factor in float32, whose relative errors are 6e-8 times its square.
FLOAT32_LIMIT = 1e3
# Each divides the error of a projection by 16 at least, and by 1e6 where W is well conditioned.
REFINEMENTS = 4
# A larger factor is not kept for the next image.
KEPT_BYTES = 2**28
# Entries of a sparse W beyond which it is applied to windows, by a product of dense matrices: at
# 1.3e7 entries in 1 / 19 of the time, at 2e5 in 2 / 3.
MOST_ENTRIES = 2 * 10**5

Map = Callable[[np.ndarray], np.ndarray]
Extremes = tuple[float, float]


class BandCholesky:
    """Solve G x = b for a symmetric positive definite G by LAPACK's banded Cholesky factor.

    `gram` is G (n, n), sparse, and `order` a permutation (n,) that brings it into a narrow band.
    With half-bandwidth b (`width`) the factor takes n·b² operations and a solve 4·n·b.
    Raises `LinAlgError` if a pivot is not positive.
    """

    def __init__(self, gram: sparse.csr_matrix, order: np.ndarray) -> None:
        self.order = order
        self.gram = gram[order][:, order].tocoo()
        size = gram.shape[0]
        below = self.gram.row >= self.gram.col
        row, col = self.gram.row[below], self.gram.col[below]
        band = np.zeros((int((row - col).max(initial=0)) + 1, size))
        band[row - col, col] = self.gram.data[below]
        self.width = band.shape[0]
        self._factor = cholesky_banded(band, lower=True, overwrite_ab=True, check_finite=False)

    def solve(self, rhs: np.ndarray) -> np.ndarray:
        """Return G^-1 rhs for rhs (n,) or (n, r)."""
        out = np.empty_like(rhs, dtype=np.float64)
        out[self.order] = self._solve_ordered(rhs[self.order])
        return out

    def _solve_ordered(self, rhs: np.ndarray) -> np.ndarray:
        return cho_solve_banded((self._factor, True), rhs, check_finite=False)

    def extremes(self) -> Extremes:
        """Largest and smallest eigenvalue of G, see `extreme_eigenvalues`."""
        return extreme_eigenvalues(self.gram.tocsr(), self._solve_ordered, self.gram.shape[0])


def extreme_eigenvalues(normal: Any, inverse: Map, size: int) -> Extremes:
    """Largest and smallest eigenvalue of G by Lanczos to 1 %; the smallest is 0 where that fails.

    `normal` applies G (size, size), as a matrix or an operator, and `inverse` G^-1.
    """
    if size < 3:
        values = np.linalg.eigvalsh(normal @ np.eye(size))
        return float(values[-1]), float(max(values[0], np.finfo(float).tiny))
    options = {"k": 1, "tol": 1e-2, "v0": np.random.default_rng(0).standard_normal(size)}
    options["return_eigenvectors"] = False
    inverted = LinearOperator((size, size), matvec=inverse, dtype=np.float64)
    try:
        largest = eigsh(normal, which="LM", **options)[0]
        return float(largest), float(1.0 / eigsh(inverted, which="LM", **options)[0])
    except ArpackNoConvergence:
        return 1.0, 0.0


class Convolution(Operator):
    """W in W x = z, without bias: x (C·H·W,) -> z (O·P,), both channel-major.

    z[o, p] = sum over c, k of weight[o, c, k] · x[c, s·p + k − padding]  (COPA eq. 1a). Filters
    `weight` are (O, C, kh, kw) as in torch.nn.Conv2d (cross-correlation). Padded pixels are known
    zeros, not unknowns.
    """

    def __init__(self, weight: np.ndarray, shape: ConvShape) -> None:
        expected = (shape.filters, shape.channels, *shape.kernel)
        if weight.shape != expected:
            raise NumericsError(f"A weight of shape {weight.shape} does not fit {expected}.")
        if not np.all(np.isfinite(weight)):
            raise NumericsError("A convolution's weight holds NaN or infinity; train or draw anew.")
        self.weight = weight.astype(np.float64)
        self.conv_shape = shape
        # Largest and smallest of W^T W or W W^T, once `factor` is known.
        self.eigenvalues: Extremes = (0.0, 0.0)
        self.shape = (shape.filters * shape.positions, shape.unknowns)

    @cached_property
    def matrix(self) -> sparse.csr_matrix:
        """W, sparse (O·P, C·H·W)."""
        shape = self.conv_shape
        pixels = shape.size[0] * shape.size[1]
        indices, valid = patch_indices(shape)
        taps = self.weight.reshape(shape.filters, shape.channels, -1)
        offset, position = np.nonzero(valid)
        o, c, tap = np.broadcast_arrays(
            np.arange(shape.filters)[:, None, None],
            np.arange(shape.channels)[None, :, None],
            np.arange(offset.size)[None, None, :],
        )
        rows = o * shape.positions + position[tap]
        cols = c * pixels + indices[offset, position][tap]
        values = taps[o, c, offset[tap]]
        return sparse.csr_matrix((values.ravel(), (rows.ravel(), cols.ravel())), shape=self.shape)

    @cached_property
    def transposed(self) -> sparse.csr_matrix:
        """W^T, sparse (C·H·W, O·P)."""
        return self.matrix.T.tocsr()

    @property
    def entries(self) -> int:
        """Entries of the sparse W, with those that meet padding."""
        return self.shape[0] * self.weight[0].size

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return W x."""
        if self.entries <= MOST_ENTRIES:
            return self.matrix @ x
        shape = self.conv_shape
        (down, across), (kh, kw) = shape.padding, shape.kernel
        image = x.reshape(shape.channels, *shape.size)
        image = np.pad(image, ((0, 0), (down, down), (across, across)))
        windows = np.lib.stride_tricks.sliding_window_view(image, (kh, kw), (1, 2))
        windows = windows[:, :: shape.stride[0], :: shape.stride[1]].transpose(0, 3, 4, 1, 2)
        rows = self.weight.reshape(shape.filters, -1)
        return (rows @ windows.reshape(rows.shape[1], -1)).ravel()

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Return W^T y."""
        if self.entries <= MOST_ENTRIES:
            return self.transposed @ y
        shape = self.conv_shape
        (down, across), (sh, sw), (kh, kw) = shape.padding, shape.stride, shape.kernel
        (height, width), (ph, pw) = shape.size, shape.output
        rows = self.weight.reshape(shape.filters, -1).T @ y.reshape(shape.filters, -1)
        rows = rows.reshape(shape.channels, kh, kw, ph, pw)
        image = np.zeros((shape.channels, height + 2 * down, width + 2 * across))
        for i, j in np.ndindex(kh, kw):
            image[:, i : i + sh * ph : sh, j : j + sw * pw : sw] += rows[:, i, j]
        return image[:, down : down + height, across : across + width].ravel()

    def dense(self) -> np.ndarray:
        """Return W as a dense matrix (O·P, C·H·W)."""
        return self.matrix.toarray()

    @cached_property
    def is_tall(self) -> bool:
        """True if there are at least as many outputs as unknowns."""
        return limits.is_tall(self.conv_shape)

    @cached_property
    def band_pays(self) -> bool:
        """True if a banded factor is cheap."""
        return limits.band_pays(self.conv_shape)

    @cached_property
    def dissection(self) -> Dissection:
        """Nested dissection of the image for a `GridFactor`."""
        return Dissection(self.conv_shape)

    def grid_fits(self, dtype: npt.DTypeLike) -> bool:
        """True if W can have full column rank and a `GridFactor` is not too large."""
        return limits.grid_bytes(self.conv_shape, dtype) <= limits.FACTOR_BYTES

    @cached_property
    def factor(self) -> BandCholesky | GridFactor | None:
        """Cholesky factor of W^T W (tall) or W W^T (wide); None where W lacks full rank.

        It is banded if that is cheap: neighbours in the image stay neighbours when channels vary
        fastest, so the matrix has a half-bandwidth of about C·(k − 1)·width instead of being dense.
        For larger images, where W is tall, it is a `GridFactor`, in float32 if that is accurate:
        it is a preconditioner then.
        """
        kinds: Sequence[tuple[Callable[[], BandCholesky | GridFactor | None], float]]
        kinds = [(self._banded, CONDITION_LIMIT)]
        if not self.band_pays:
            kinds = [
                (lambda: self.grid_factor(np.float32), FLOAT32_LIMIT),
                (lambda: self.grid_factor(np.float64), CONDITION_LIMIT),
            ]
        for make, limit in kinds:
            try:
                factor = make()
            except LinAlgError:
                continue
            if factor is not None:
                self.eigenvalues = self._extremes(factor)
                if self.eigenvalues[0] <= limit**2 * self.eigenvalues[1]:
                    return factor
        return None

    def _banded(self) -> BandCholesky:
        shape = self.conv_shape
        if self.is_tall:
            gram, groups, sites = self.transposed @ self.matrix, shape.channels, -1
        else:
            gram, groups, sites = self.matrix @ self.transposed, shape.filters, shape.positions
        order = np.arange(gram.shape[0]).reshape(groups, sites).T.ravel()
        return BandCholesky(gram.tocsr(), order)

    def release(self) -> None:
        """Forget a large factor; it is made again where it is needed."""
        factor = self.__dict__.get("factor")
        if isinstance(factor, GridFactor) and factor.bytes > KEPT_BYTES:
            del self.__dict__["factor"]

    def grid_factor(self, dtype: npt.DTypeLike, damping: float = 0.0) -> GridFactor | None:
        """`GridFactor` of W^T W + damping·I; None if it does not fit."""
        fits = self.grid_fits(dtype)
        return GridFactor(self.weight, self.dissection, damping, dtype) if fits else None

    def _extremes(self, factor: BandCholesky | GridFactor) -> Extremes:
        if isinstance(factor, BandCholesky):
            return factor.extremes()
        size = self.shape[1]
        normal = LinearOperator((size, size), matvec=self.normal, dtype=np.float64)
        return extreme_eigenvalues(normal, factor.solve, size)

    def solve(self, y: np.ndarray) -> np.ndarray:
        """Return W^+ y for y (O·P,); `NumericsError` if W is not of full column rank."""
        if not self.is_tall or self.factor is None:
            raise NumericsError(
                "W lacks full column rank, which least squares and the pull-back constraint need."
            )
        x = self.factor.solve(self.adjoint(y))
        if isinstance(self.factor, GridFactor):
            for _ in range(REFINEMENTS):
                x += self.factor.solve(self.adjoint(y - self.apply(x)))
        return x

    def project(self, y: np.ndarray) -> np.ndarray:
        """Project y (O·P,) orthogonally onto range(W): P = I − R·diag(0, I)·R^T in COPA's eq. (18).

        Raises `NumericsError` if W is not of full column rank, where eq. (17) is not defined.
        """
        return self.apply(self.solve(y))


class Rows(Operator):
    """The rows of W that count: those marked by `keep`, bool (O·P,), or all for None."""

    def __init__(self, convolution: Convolution, keep: np.ndarray | None = None) -> None:
        self._convolution, self._keep = convolution, keep
        rows = convolution.shape[0] if keep is None else int(keep.sum())
        self.shape = (rows, convolution.shape[1])

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return the rows that count of W x."""
        z = self._convolution.apply(x)
        return z if self._keep is None else z[self._keep]

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Return W^T y, with 0 for all other rows."""
        if self._keep is None:
            return self._convolution.adjoint(y)
        z = np.zeros(self._convolution.shape[0])
        z[self._keep] = y
        return self._convolution.adjoint(z)

    def square(self) -> float:
        """Sum of the squares of all entries."""
        shape = self._convolution.conv_shape
        valid = patch_indices(shape)[1].astype(np.float64)
        kept = np.ones(shape.positions) if self._keep is None else self._keep
        counts = kept.reshape(-1, shape.positions) @ valid.T  # (1 or O, kh·kw)
        each = np.square(self._convolution.weight).sum(1).reshape(shape.filters, -1)
        return float(np.sum(each * counts))

    def dense(self) -> np.ndarray:
        """Return the rows that count as a dense matrix."""
        matrix = self._convolution.matrix
        return (matrix if self._keep is None else matrix[self._keep]).toarray()
