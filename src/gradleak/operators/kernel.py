"""Layers with fewer outputs than unknowns and few gradients: K on the kernel of W."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from gradleak.operators.band import BandCholesky
from gradleak.operators.base import Operator
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint


def thin_svd(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thin SVD by divide and conquer; by QR iteration where that does not converge.

    LAPACK's divide and conquer fails on some well-conditioned matrices with many equal singular
    values, as in layers of one filter size.
    """
    try:
        return linalg.svd(matrix, full_matrices=False, check_finite=False)
    except linalg.LinAlgError:
        return linalg.svd(matrix, full_matrices=False, check_finite=False, lapack_driver="gesvd")


@dataclass(frozen=True)
class KernelPart:
    """K on the kernel of W: the information of the gradient beyond the weights."""

    convolution: Convolution  # W of full row rank m, and the factor of W W^T
    factor: BandCholesky
    lengths: np.ndarray  # length (|W|,) of each row of K, 1 for a zero row
    # Singular triplets (|W|, r), (r,), (n, r) of K (I − W^+ W), K's rows having length 1.
    left: np.ndarray
    values: np.ndarray
    basis: np.ndarray
    dependencies: np.ndarray  # (rows, q), spans the left null space of U

    @staticmethod
    def of(
        convolution: Convolution,
        gradient: GradientConstraint,
        lengths: np.ndarray,
        tolerance: float,
    ) -> KernelPart:
        """Decompose; singular values below `tolerance` of the largest count as 0."""
        factor = convolution.factor
        assert factor is not None
        scaled = gradient.dense() / lengths[:, None]
        coupling = factor.solve(convolution.matrix @ scaled.T)  # (W W^T)^-1 W K^T
        inside = scaled.T - convolution.transposed @ coupling  # (n, |W|)
        basis, values, left_t = thin_svd(inside)
        keep = values > tolerance * max(values.max(initial=0.0), 1.0)
        left = left_t[keep].T
        null = linalg.qr(left)[0][:, left.shape[1] :]
        below = null / lengths[:, None]
        left_null = np.concatenate([-coupling @ null, below])
        dependencies = linalg.qr(left_null, mode="economic")[0] if null.size else left_null
        return KernelPart(
            convolution, factor, lengths, left, values[keep], basis[:, keep], dependencies
        )

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
