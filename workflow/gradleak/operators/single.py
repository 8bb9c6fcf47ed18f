"""The paper's arithmetic: least squares in float32 throughout (R-GAP's authors used NumPy's)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg
from scipy.linalg import lapack

from gradleak.errors import NumericsError
from gradleak.operators.base import Solution

if TYPE_CHECKING:
    from gradleak.operators.system import LayerSystem

# Singular values below this share of the largest count as 0: NumPy's rule before version 2.0; the
# paper is from 2020.
PRECISION = float(np.finfo(np.float32).eps)
# Columns that the QR factorisation handles at once.
PANEL = 128


def solve_single(system: LayerSystem, values: np.ndarray) -> Solution:
    """U^+ V in float32, as a dense float32 least-squares solver finds it but faster.

    K is reduced to I_C ⊗ R₀ by a QR factorisation of K₀, which leaves the problem as it is, and W
    is then rotated into that triangle. A triangle of full rank is solved, another one gets the
    minimum-norm solution from its SVD.

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
    triangle, rhs = _triangle(system, values.astype(np.float32))
    n = system.shape[1]
    rank = n
    # The singular values' condition number is at most the mean of these two, geometrically.
    estimates = [lapack.strcon(triangle, norm=norm, uplo="U")[0] for norm in ("1", "I")]
    certain = np.sqrt(float(estimates[0]) * float(estimates[1])) > PRECISION
    if certain:
        x = lapack.strtrs(triangle, rhs)[0]
    else:
        x, _, rank, _ = linalg.lstsq(
            np.triu(triangle), rhs, cond=PRECISION, lapack_driver="gelsd", check_finite=False
        )
    solution = x.astype(np.float64).ravel()
    stop = "direct" if rank == n else f"direct, rank {rank} of {n}"
    return Solution(solution, float(np.linalg.norm(system.apply(solution) - values)), 0, stop)


def _triangle(system: LayerSystem, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R (n, n) upper triangular and Q^T V (n,) of U = Q R, both float32.

    R lies in Fortran order; what is below its diagonal is not to be read.
    """
    shape, gradient = system.convolution.conv_shape, system.gradient
    pixels = shape.size[0] * shape.size[1]
    n = system.shape[1]
    block = gradient.block.reshape(-1, pixels).astype(np.float32)
    q, r = linalg.qr(block, mode="economic", check_finite=False)
    taps = block.shape[0] // shape.filters
    grouped = values[system.split :].reshape(shape.filters, shape.channels, taps)
    per_channel = grouped.transpose(0, 2, 1).reshape(block.shape[0], shape.channels)
    head = np.zeros((shape.channels, pixels), dtype=np.float32)
    head[:, : q.shape[1]] = (q.T @ per_channel).T
    upper = np.zeros((n, n), dtype=np.float32, order="F")
    for first in range(0, n, pixels):
        upper[first : first + r.shape[0], first : first + pixels] = r
    weights = system.weights.astype(np.float32).toarray(order="F")
    if not weights.shape[0]:
        return upper, head.reshape(n, 1)
    panel = min(PANEL, n)
    upper, below, t, _ = lapack.stpqrt(0, panel, upper, weights, overwrite_a=1, overwrite_b=1)
    top, _, _ = lapack.stpmqrt(
        0,
        below,
        t,
        head.reshape(n, 1),
        values[: system.split].reshape(-1, 1),
        side="L",
        trans="T",
    )
    return upper, top
