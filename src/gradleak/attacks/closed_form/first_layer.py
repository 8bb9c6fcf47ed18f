"""The image from the gradient of the layer that sees it, in closed form and for any network.

That layer is fully connected, on the whole image (Phong et al. 2018) or on its patches. Patches
need the gradient at the layer's outputs, which learned positions give away: they are added to these
outputs, so that their gradient is the same (Lu et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gradleak.errors import NumericsError

# Relative difference up to which a parameter's gradient, summed over patches, is the bias'.
SAME = 1e-3
# Singular values below this share of the largest one are noise in float32.
CUTOFF = 1e-6


def of_image(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return the input x (n,) of a fully connected layer from ∂ℓ/∂W = δ xᵀ and ∂ℓ/∂b = δ.

    `weight` is (d, n), `bias` (d,). Raises `NumericsError` if δ is 0.
    """
    square = float(bias @ bias)
    if not square:
        raise NumericsError("The gradient of the first layer's bias is zero.")
    return np.asarray((bias @ weight) / square)


def of_patches(weight: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """Return patches X (P, k) from ∂ℓ/∂W = Δᵀ X.

    `weight` is (d, k), `deltas` Δ (P, d), the gradient at the layer's output for each patch. Raises
    `NumericsError` if Δ has no rank P, as with more patches than outputs.
    """
    found, _, rank, _ = np.linalg.lstsq(deltas.T, weight, rcond=CUTOFF)
    if rank < len(deltas):
        raise NumericsError(
            f"The gradient of the positions has rank {rank} for {len(deltas)} patches, so it "
            "leaves some of them open."
        )
    return np.asarray(found)


def positions(
    gradients: Mapping[str, np.ndarray], count: int, bias: np.ndarray
) -> tuple[str, np.ndarray] | None:
    """Return name and gradient (P, d) of the learned positions of `count` patches; None without.

    Positions of further tokens, such as one for the class, may come before or after them. They are
    recognised by their sum over patches, which is the gradient of the layer's bias (d,).
    """
    size = float(np.linalg.norm(bias))
    for name, value in gradients.items():
        if value.ndim < 2 or value.shape[-1] != len(bias):
            continue
        rows = value.reshape(-1, len(bias)).astype(np.float64)
        for some in (rows[-count:], rows[:count]):
            if len(some) == count and np.linalg.norm(some.sum(0) - bias) <= SAME * size:
                return name, some
    return None
