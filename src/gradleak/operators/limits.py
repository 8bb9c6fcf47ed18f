"""Sizes up to which layers are solved, from sizes alone."""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gradleak.operators.grid_factor import Dissection
from gradleak.operators.shape import ConvShape

# Limits in bytes of a dense matrix, and of a sparse factor with what its computation holds.
MATRIX_BYTES = 4 * 2**30
FACTOR_BYTES = 6 * 2**30
# Largest number of unknowns whose U^T U is held.
MOST_DENSE = math.isqrt(MATRIX_BYTES // 8)
# Number of products in the sparse W^T W above which the structured U^T U of `gram` is faster.
FACTOR_WORK = 10**8
# Largest number of rows of K for decomposing its part on W's kernel.
KERNEL_ROWS = 1000


def is_tall(shape: ConvShape) -> bool:
    """True if there are at least as many outputs as unknowns."""
    return shape.filters * shape.positions >= shape.unknowns


def band_pays(shape: ConvShape) -> bool:
    """True if the sparse W^T W or W W^T of a banded factor is cheap, about a second."""
    row = shape.channels * shape.kernel[0] * shape.kernel[1]
    return shape.filters * shape.positions * row**2 <= FACTOR_WORK


def grid_bytes(shape: ConvShape, dtype: npt.DTypeLike) -> float:
    """Bytes of a `GridFactor` and of its computation; infinite where W lacks full column rank."""
    if not is_tall(shape) or shape.covered < shape.unknowns:
        return math.inf
    return float(_numbers(shape) * np.dtype(dtype).itemsize)


@lru_cache(256)
def _numbers(shape: ConvShape) -> float:
    return Dissection(shape).cost.numbers


def solving_bytes(shape: ConvShape) -> float:
    """Bytes that solving a layer may take: a dense U^T U and its factor, else a sparse factor.

    From sizes alone: whether a cheaper path will do depends on numbers. 0 for a layer that is
    refused.
    """
    n = shape.unknowns
    rows = shape.filters * (shape.positions + shape.channels * shape.kernel[0] * shape.kernel[1])
    if n <= MOST_DENSE:
        return 16.0 * n * min(rows, n)
    least = grid_bytes(shape, np.float32)
    return min(2.0 * least, float(FACTOR_BYTES)) if least <= FACTOR_BYTES else 0.0


def preconditioner_bytes(unknowns: int) -> float:
    """Bytes of Gauss-Newton's H, a damped copy and its factor in float32; 0 if they do not fit."""
    taken = 3 * 4 * unknowns**2
    return float(taken) if taken <= MATRIX_BYTES else 0.0


def too_large(shape: ConvShape, masked: bool) -> str:
    """Why a layer is too large to be solved, as the end of a sentence; empty if it is not.

    `masked` tells that rows of W are left out, as behind a ReLU.
    """
    n, (kh, kw), (height, width) = shape.unknowns, shape.kernel, shape.size
    # With so many rows K may determine the layer, channel by channel.
    if n <= MOST_DENSE or shape.filters * kh * kw >= height * width:
        return ""
    met = shape.covered == n
    few = met if is_tall(shape) else shape.filters * shape.channels * kh * kw <= KERNEL_ROWS
    taken = grid_bytes(shape, np.float32)
    if not masked and ((few and band_pays(shape)) or taken <= FACTOR_BYTES):
        return ""
    dense = f"has {n} unknowns, whose dense matrix takes {8 * n * n / 2**30:.0f} GiB"
    if masked:
        why = "no sparse factor helps, since ReLU hides rows of W; use LeakyReLU"
    elif not is_tall(shape):
        why = "no sparse factor helps, since W has fewer outputs; use more filters"
    elif not met:
        why = (
            "no sparse factor helps, since W's windows do not meet all pixels; use a smaller stride"
        )
    else:
        why = f"a sparse factor takes {taken / 2**30:.1f} GiB; use fewer channels"
    limits = f"the limits are {MATRIX_BYTES / 2**30:.0f} and {FACTOR_BYTES / 2**30:.0f} GiB"
    return f"{dense}, and {why}, or a smaller input ({limits})"
