"""The linear system of a batch's mean features, one column a class."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# Columns of the right-hand side at a time, to bound the memory of their copies in float64.
COLUMNS = 4096
# Singular values below this many times the largest count as 0.
RANK_TOLERANCE = 1e-12
# A matrix whose condition number may be above 1 / TRUSTED is decomposed into singular values.
TRUSTED = 1e-8

Map = Callable[[np.ndarray], np.ndarray]


class ClassSystem:
    """Least squares `matrix` (R, N) z̄ = rows (R, n) in float64.

    If it is `open_`, z̄ has no component along `direction` (N,), that of the least singular value,
    made least negative; None if it is not. Under cross-entropy a class's column p − e sums to 0, so
    that of all classes the rows' own direction is (1, ..., 1). The system is then as well
    conditioned, bordered by it, as its other singular values are, and a factor by elimination takes
    a thirtieth of the time of the singular values.
    """

    def __init__(self, matrix: np.ndarray, open_: bool) -> None:
        self.matrix = matrix
        self.direction: np.ndarray | None = None
        bordered = _bordered(matrix, open_)
        if bordered is None:
            self._inverse: Map = self._by_singular_values(open_)
        else:
            self._inverse, self.direction = bordered

    def _by_singular_values(self, open_: bool) -> Map:
        q, r = np.linalg.qr(self.matrix)
        u, size, v = np.linalg.svd(r)
        rank = min(int((size > size[0] * RANK_TOLERANCE).sum()), len(size) - int(open_))
        if open_:
            self.direction = np.abs(v[-1])
        inverse = (v[:rank].T / size[:rank]) @ u[:, :rank].T @ q.T
        return lambda rows: np.asarray(inverse @ rows)

    def solve(self, rows: np.ndarray) -> np.ndarray:
        """Return z̄ (N, n)."""
        out = np.empty((self.matrix.shape[1], rows.shape[1]))
        for first in range(0, rows.shape[1], COLUMNS):
            part = slice(first, first + COLUMNS)
            out[:, part] = self._inverse(rows[:, part].astype(np.float64))
        return out


def _bordered(matrix: np.ndarray, open_: bool) -> tuple[Map, np.ndarray | None] | None:
    """Solve by elimination, and the direction left; None where that does not hold.

    [M s·e; s·e^T 0] with e = (1, ..., 1) / √N and s of the size of M's singular values: e^T M = 0,
    which holds up to rounding where δ is in float32, leaves M x = b − e e^T b.
    """
    from scipy import linalg
    from scipy.linalg import lapack

    n = matrix.shape[1]
    if matrix.shape[0] != n:
        return None
    whole = matrix.astype(np.float64)
    if open_:
        size = float(np.linalg.norm(whole))
        border = np.full(n, size / n)
        if np.linalg.norm(whole.sum(axis=0)) > np.finfo(np.float32).eps * size:
            return None
        whole = np.block([[whole, border[:, None]], [border[None], np.zeros((1, 1))]])
    length = np.linalg.norm(whole, 1)
    lower, pivots, failed = lapack.dgetrf(whole)
    if failed or not lapack.dgecon(lower, length)[0] > TRUSTED:
        return None
    factor = lower, pivots
    if not open_:
        return lambda rows: np.asarray(linalg.lu_solve(factor, rows, check_finite=False)), None
    last = np.zeros(n + 1)
    last[n] = 1.0
    direction = linalg.lu_solve(factor, last)[:n]
    direction /= np.linalg.norm(direction)

    def inverse(rows: np.ndarray) -> np.ndarray:
        padded = np.concatenate([rows, np.zeros((1, rows.shape[1]))])
        found = linalg.lu_solve(factor, padded, overwrite_b=True, check_finite=False)[:n]
        return np.asarray(found - np.outer(direction, direction @ found))

    return inverse, np.abs(direction)
