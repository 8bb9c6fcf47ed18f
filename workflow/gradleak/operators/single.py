"""The paper's arithmetic: least squares in float32 throughout (R-GAP's authors used NumPy's)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg, sparse
from scipy.linalg import lapack

from gradleak.errors import NumericsError
from gradleak.operators.base import Solution
from gradleak.operators.kernel import thin_svd
from gradleak.operators.structure import rank_bound

if TYPE_CHECKING:
    from gradleak.operators.row_factor import RowFactor
    from gradleak.operators.system import LayerSystem

# Singular values below this share of the largest count as 0: NumPy's rule before version 2.0; the
# paper is from 2020.
PRECISION = float(np.finfo(np.float32).eps)
# Columns that the QR factorisation handles at once.
PANEL = 128

Found = tuple[np.ndarray, int]


def solve_single(system: LayerSystem, values: np.ndarray) -> Solution:
    """U^+ V in float32, as a dense float32 least-squares solver finds it but faster.

    K is reduced to I_C ⊗ R₀ by a QR factorisation of K₀, which leaves the problem as it is. Then:

    * Where the sizes alone say that U lacks column rank and W has full row rank: the unknowns are
      rotated by the QR factors of W^T, which images share, and what is left of K gets an SVD.
    * Otherwise W is rotated into the triangle R₀; a triangle of full rank is solved, another one
      gets the minimum-norm solution from its SVD.

    Parameters
    ----------
    system
        U, without pinned unknowns.
    values
        V, see `LayerSystem.solve`; rounded to float32.

    Returns
    -------
    Solution
        `x` holds float32 numbers as float64, like every solution; `stop` is ``direct``, or
        ``direct, rank r of n``.

    Raises
    ------
    NumericsError
        If unknowns are pinned or LAPACK's SVD does not converge.
    """
    if system.pinned is not None:
        raise NumericsError("The float32 solver takes no pinned unknowns.")
    reduced = _Reduced.of(system, values.astype(np.float32))
    n = system.shape[1]
    wide = system.keep is None and system.split < n
    lacking = rank_bound(system.convolution.conv_shape) < n
    factor = system.convolution.row_factor if wide and lacking else None
    if factor is not None:
        x, rank = _solve_on_kernel(reduced, factor)
    elif reduced.rows < n:
        x, rank = _minimum_norm(reduced.stacked(), reduced.values())
    else:
        x, rank = _solve_triangle(*_triangle(reduced))
    solution = x.astype(np.float64).ravel()
    stop = "direct" if rank == n else f"direct, rank {rank} of {n}"
    return Solution(solution, float(np.linalg.norm(system.apply(solution) - values)), 0, stop)


@dataclass(frozen=True)
class _Reduced:
    """[W; I_C ⊗ R₀] x = [z; h], which has the least-squares solutions of U x = V. All float32.

    Attributes
    ----------
    weights
        W (m, n), sparse.
    z
        (m,).
    triangle
        R₀ (k, P), upper triangular, of K₀ = Q₀ R₀.
    head
        h (C, k), a channel's gradients rotated by Q₀^T.
    """

    weights: sparse.csr_matrix
    z: np.ndarray
    triangle: np.ndarray
    head: np.ndarray

    @staticmethod
    def of(system: LayerSystem, values: np.ndarray) -> _Reduced:
        shape = system.convolution.conv_shape
        block = system.gradient.block
        taps = block.shape[1]
        block = block.reshape(-1, block.shape[2]).astype(np.float32)
        q, triangle = linalg.qr(block, mode="economic", check_finite=False)
        grouped = values[system.split :].reshape(shape.filters, shape.channels, taps)
        per_channel = grouped.transpose(0, 2, 1).reshape(block.shape[0], shape.channels)
        weights = system.weights.astype(np.float32)
        return _Reduced(weights, values[: system.split], triangle, (q.T @ per_channel).T)

    @property
    def rows(self) -> int:
        """Rows of the reduced system."""
        return self.z.size + self.head.size

    def gradient(self) -> np.ndarray:
        """I_C ⊗ R₀ (C·k, n), dense."""
        return linalg.block_diag(*[self.triangle] * len(self.head))

    def stacked(self) -> np.ndarray:
        """[W; I_C ⊗ R₀], dense."""
        return np.concatenate([self.weights.toarray(), self.gradient()])

    def values(self) -> np.ndarray:
        """[z; h]."""
        return np.concatenate([self.z, self.head.ravel()])


def _minimum_norm(matrix: np.ndarray, values: np.ndarray) -> Found:
    """Minimum-norm least-squares solution and numerical rank, by SVD."""
    x, _, rank, _ = linalg.lstsq(
        matrix, values, cond=PRECISION, lapack_driver="gelsd", check_finite=False
    )
    return x, int(rank)


def _solve_on_kernel(reduced: _Reduced, factor: RowFactor) -> Found:
    """Solution where W has full row rank m: W^T = Q [R; 0], x = Q y.

    U Q = [R^T 0; A B]. Singular values of B, the part of K on W's kernel, below `PRECISION` of
    U's largest count as 0. With N spanning what B then does not reach, y₁ = R^-T (z + w) minimises
    |w|² + |N^T (h − A y₁)|²: rows of K that depend on others and W compete with W's rows. Then
    y₂ = B^+ (h − A y₁).
    """
    m, head = reduced.z.size, reduced.head.ravel()
    rotated = factor.rotate(reduced.gradient())
    first, second = rotated[:, :m], rotated[:, m:]
    left, singular, right = thin_svd(second)
    keep = singular > PRECISION * _norm(reduced, singular)
    left = left[:, keep]
    y_first = factor.solve_transposed(reduced.z)
    outside = linalg.qr(left, check_finite=False)[0][:, left.shape[1] :]
    if outside.shape[1]:
        rest = outside.T @ (head - first @ y_first)
        pull = factor.solve(first.T @ outside).T  # N^T A R^-T
        normal = np.eye(len(pull), dtype=np.float32) + pull @ pull.T
        shift = pull.T @ linalg.solve(normal, rest, assume_a="pos")
        y_first = factor.solve_transposed(reduced.z + shift)
    rest = head - first @ y_first
    y_second = right[keep].T @ ((left.T @ rest) / singular[keep])
    return factor.rotate_back(np.concatenate([y_first, y_second])), m + int(keep.sum())


def _norm(reduced: _Reduced, singular: np.ndarray) -> float:
    """Largest singular value of U, to some percent; `singular` are those on W's kernel."""
    x = np.ones(reduced.weights.shape[1], dtype=np.float32)
    channels = len(reduced.head)
    for _ in range(20):
        x /= np.linalg.norm(x)
        per_channel = x.reshape(channels, -1) @ reduced.triangle.T @ reduced.triangle
        x = reduced.weights.T @ (reduced.weights @ x) + per_channel.ravel()
    return max(float(np.sqrt(np.linalg.norm(x))), float(singular.max(initial=0.0)))


def _solve_triangle(triangle: np.ndarray, values: np.ndarray) -> Found:
    # The singular values' condition number is at most the mean of these two, geometrically.
    estimates = [lapack.strcon(triangle, norm=norm, uplo="U")[0] for norm in ("1", "I")]
    if np.sqrt(float(estimates[0]) * float(estimates[1])) > PRECISION:
        return lapack.strtrs(triangle, values)[0], len(triangle)
    return _minimum_norm(np.triu(triangle), values)


def _triangle(reduced: _Reduced) -> tuple[np.ndarray, np.ndarray]:
    """R (n, n) upper triangular and Q^T V (n, 1) of U = Q R, both float32.

    R lies in Fortran order; what is below its diagonal is not to be read.
    """
    n = reduced.weights.shape[1]
    rows, pixels = reduced.triangle.shape
    head = np.zeros((n // pixels, pixels), dtype=np.float32)
    head[:, :rows] = reduced.head
    upper = np.zeros((n, n), dtype=np.float32, order="F")
    for first in range(0, n, pixels):
        upper[first : first + rows, first : first + pixels] = reduced.triangle
    weights = reduced.weights.toarray(order="F")
    if not weights.shape[0]:
        return upper, head.reshape(n, 1)
    panel = min(PANEL, n)
    upper, below, t, _ = lapack.stpqrt(0, panel, upper, weights, overwrite_a=1, overwrite_b=1)
    top, _, _ = lapack.stpmqrt(
        0, below, t, head.reshape(n, 1), reduced.z.reshape(-1, 1), side="L", trans="T"
    )
    return upper, top
