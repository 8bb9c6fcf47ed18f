"""The weight constraint: a convolution as a sparse matrix (COPA eq. 1a)."""

from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cho_solve_banded, cholesky_banded
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from gradleak.errors import NumericsError
from gradleak.operators.base import Operator
from gradleak.operators.shape import ConvShape, patch_indices

# Above this condition number W counts as rank-deficient and the dense path is used: normal
# equations lose twice the digits, and 1e6 leaves four of float64's sixteen.
CONDITION_LIMIT = 1e6
# Number of products in the sparse W^T W above which the structured U^T U of `gram` is faster.
FACTOR_WORK = 10**8


class BandCholesky:
    """Solve G x = b for a symmetric positive definite G by LAPACK's banded Cholesky factor.

    `gram` is G (n, n), sparse, and `order` a permutation (n,) that brings it into a narrow band.
    With half-bandwidth b the factor takes n·b² operations and a solve 4·n·b. Raises
    `LinAlgError` if a pivot is not positive.
    """

    def __init__(self, gram: sparse.csr_matrix, order: np.ndarray) -> None:
        self.order = order
        self.gram = gram[order][:, order].tocoo()
        size = gram.shape[0]
        below = self.gram.row >= self.gram.col
        row, col = self.gram.row[below], self.gram.col[below]
        band = np.zeros((int((row - col).max(initial=0)) + 1, size))
        band[row - col, col] = self.gram.data[below]
        self._factor = cholesky_banded(band, lower=True, overwrite_ab=True, check_finite=False)

    def solve(self, rhs: np.ndarray) -> np.ndarray:
        """Return G^-1 rhs for rhs (n,) or (n, r)."""
        out = np.empty_like(rhs, dtype=np.float64)
        out[self.order] = self._solve_ordered(rhs[self.order])
        return out

    def _solve_ordered(self, rhs: np.ndarray) -> np.ndarray:
        return cho_solve_banded((self._factor, True), rhs, check_finite=False)

    def condition(self) -> float:
        """Condition number of G, both ends by Lanczos to 1 %; infinite where that fails."""
        size = self.gram.shape[0]
        if size < 3:
            values = np.linalg.eigvalsh(self.gram.toarray())
            return float(values[-1] / max(values[0], np.finfo(float).tiny))
        start = np.random.default_rng(0).standard_normal(size)
        inverse = LinearOperator((size, size), matvec=self._solve_ordered, dtype=np.float64)
        options = {"k": 1, "tol": 1e-2, "v0": start, "return_eigenvectors": False}
        try:
            largest = eigsh(self.gram.tocsr(), which="LM", **options)[0]
            smallest_inverse = eigsh(inverse, which="LM", **options)[0]
        except ArpackNoConvergence:
            return float("inf")
        return float(largest * smallest_inverse)


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
        self.shape = (shape.filters * shape.positions, shape.unknowns)
        self.matrix = self._build()
        self.transposed = self.matrix.T.tocsr()

    def _build(self) -> sparse.csr_matrix:
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

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return W x."""
        return self.matrix @ x

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Return W^T y."""
        return self.transposed @ y

    def dense(self) -> np.ndarray:
        """Return W as a dense matrix (O·P, C·H·W)."""
        return self.matrix.toarray()

    @cached_property
    def is_tall(self) -> bool:
        """True if there are at least as many outputs as unknowns."""
        return self.shape[0] >= self.shape[1]

    @property
    def factor_pays(self) -> bool:
        """True if the sparse W^T W or W W^T that `factor` needs is cheap, about a second."""
        shape = self.conv_shape
        row = shape.channels * shape.kernel[0] * shape.kernel[1]
        return self.shape[0] * row**2 <= FACTOR_WORK

    @cached_property
    def factor(self) -> BandCholesky | None:
        """Banded Cholesky factor of W^T W (tall) or W W^T (wide); None where W lacks full rank.

        Neighbours in the image stay neighbours when channels vary fastest, so the matrix has a
        half-bandwidth of about C·(k − 1)·width instead of being dense.
        """
        shape = self.conv_shape
        if self.is_tall:
            gram, groups, sites = self.transposed @ self.matrix, shape.channels, -1
        else:
            gram, groups, sites = self.matrix @ self.transposed, shape.filters, shape.positions
        order = np.arange(gram.shape[0]).reshape(groups, sites).T.ravel()
        try:
            factor = BandCholesky(gram.tocsr(), order)
        except LinAlgError:
            return None
        return factor if factor.condition() <= CONDITION_LIMIT**2 else None

    def project(self, y: np.ndarray) -> np.ndarray:
        """Project y (O·P,) orthogonally onto range(W): P = I − R·diag(0, I)·R^T in COPA's eq. (18).

        Raises `NumericsError` if W is not of full column rank, where eq. (17) is not defined.
        """
        if not self.is_tall or self.factor is None:
            raise NumericsError("The pull-back constraint needs a W of full column rank.")
        return self.apply(self.factor.solve(self.adjoint(y)))
