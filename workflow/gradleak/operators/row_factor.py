"""QR factors of W^T in float32: the unknowns rotated into W's row space and its kernel."""

from __future__ import annotations

import numpy as np
from scipy import linalg, sparse
from scipy.linalg import lapack

# Columns that LAPACK handles at once; its work array has this many per column.
PANEL = 64


class RowFactor:
    """W^T = Q [R; 0] for a W of full row rank, float32.

    Parameters
    ----------
    weights
        W (m, n), m < n.

    Attributes
    ----------
    condition
        Of R in the 1-norm, estimated.
    """

    def __init__(self, weights: sparse.csr_matrix) -> None:
        columns = weights.T.astype(np.float32).toarray(order="F")
        (self._reflectors, self._tau), _ = linalg.qr(
            columns, mode="raw", overwrite_a=True, check_finite=False
        )
        self._upper = np.asfortranarray(np.triu(self._reflectors[: weights.shape[0]]))
        reciprocal = float(lapack.strcon(self._upper, uplo="U")[0])
        self.condition = 1.0 / reciprocal if reciprocal else float("inf")

    def _multiply(self, columns: np.ndarray, transposed: str) -> np.ndarray:
        found: np.ndarray = lapack.sormqr(
            "L",
            transposed,
            self._reflectors,
            self._tau,
            np.asfortranarray(columns),
            lwork=PANEL * max(1, columns.shape[1]),
            overwrite_c=1,
        )[0]
        return found

    def rotate(self, rows: np.ndarray) -> np.ndarray:
        """`rows` (k, n) times Q."""
        return self._multiply(rows.T, "T").T

    def rotate_back(self, y: np.ndarray) -> np.ndarray:
        """Q y, y (n,)."""
        return self._multiply(y.astype(np.float32)[:, None], "N").ravel()

    def solve(self, values: np.ndarray) -> np.ndarray:
        """R^-1 `values`, (m,) or (m, k)."""
        return linalg.solve_triangular(self._upper, values, check_finite=False)

    def solve_transposed(self, values: np.ndarray) -> np.ndarray:
        """R^-T `values`: the part of x in W's row space that gives W x = `values`."""
        return linalg.solve_triangular(self._upper, values, trans="T", check_finite=False)
