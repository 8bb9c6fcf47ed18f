"""The weight constraint: a convolution as a sparse matrix (COPA eq. 1a)."""

from functools import cached_property

import numpy as np
from scipy import sparse

from gradleak.errors import NumericsError
from gradleak.operators.band import BandCholesky, NotPositiveDefinite
from gradleak.operators.base import Operator
from gradleak.operators.shape import ConvShape, patch_indices

# Above this condition number W counts as rank-deficient and the dense path is used: normal
# equations lose twice the digits, and 1e6 leaves four of float64's sixteen.
CONDITION_LIMIT = 1e6
# Number of products in the sparse W^T W above which the structured U^T U of `gram` is faster.
FACTOR_WORK = 10**8


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
        except NotPositiveDefinite:
            return None
        return factor if factor.condition() <= CONDITION_LIMIT**2 else None

    def project(self, y: np.ndarray) -> np.ndarray:
        """Project y (O·P,) orthogonally onto range(W): P = I − R·diag(0, I)·R^T in COPA's eq. (18).

        Raises `NumericsError` if W is not of full column rank, where eq. (17) is not defined.
        """
        if not self.is_tall or self.factor is None:
            raise NumericsError("The pull-back constraint needs a W of full column rank.")
        return self.apply(self.factor.solve(self.adjoint(y)))
