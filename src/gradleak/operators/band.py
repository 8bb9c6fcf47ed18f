"""Cholesky factor of a sparse positive definite matrix that is banded after a reordering."""

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cho_solve_banded, cholesky_banded
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh


class NotPositiveDefinite(Exception):
    """The matrix has no Cholesky factor."""


class BandCholesky:
    """Solve G x = b for a symmetric positive definite G by LAPACK's banded Cholesky factor.

    `gram` is G (n, n), sparse, and `order` a permutation (n,) that brings it into a narrow band.
    With half-bandwidth b the factor takes n·b² operations and a solve 4·n·b. Raises
    `NotPositiveDefinite` if a pivot is not positive.
    """

    def __init__(self, gram: sparse.csr_matrix, order: np.ndarray) -> None:
        self.order = order
        self.gram = gram[order][:, order].tocoo()
        size = gram.shape[0]
        below = self.gram.row >= self.gram.col
        row, col = self.gram.row[below], self.gram.col[below]
        band = np.zeros((int((row - col).max(initial=0)) + 1, size))
        band[row - col, col] = self.gram.data[below]
        try:
            self._factor = cholesky_banded(band, lower=True, overwrite_ab=True, check_finite=False)
        except LinAlgError as error:
            raise NotPositiveDefinite from error

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
