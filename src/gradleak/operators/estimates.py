"""Operations and memory that solving a layer takes on each path, from sizes."""

from __future__ import annotations

from typing import NamedTuple

from gradleak.operators.convolution import BandCholesky, Convolution
from gradleak.operators.gradient import GradientConstraint


class Estimate(NamedTuple):
    """Floating-point operations and memory of one solution of U x = V."""

    path: str  # of `gradleak.operators.system.LayerSystem`
    operations: float  # of the factor, or of the whole solution where it is direct
    step_operations: float  # of each step of conjugate gradients, 0 where it is direct
    bytes: float  # held by the factor and its computation


def estimate(
    convolution: Convolution, gradient: GradientConstraint, size: tuple[int, int], path: str
) -> Estimate:
    """Estimate what `path`, one that the system of both can take, needs: leading terms alone.

    ``blocks`` factors one block of P x P for the P pixels of a channel; a band of width b takes
    n·b² operations, a `GridFactor` what its dissection counts, ``gram`` n³ / 3 and ``dense``
    2·m·n², for n unknowns and m rows.
    """
    shape, (rows, n) = convolution.conv_shape, size
    product = 4.0 * (convolution.entries + shape.channels * gradient.block.size)
    if path == "dense":
        return Estimate(path, 2.0 * rows * n**2, 0.0, 16.0 * rows * n)
    if path == "gram":
        return Estimate(path, n**3 / 3, product + 4.0 * n**2, 16.0 * n**2)
    if path == "blocks":
        pixels = shape.size[0] * shape.size[1]
        block = gradient.block.size * pixels + pixels**3 / 3
        return Estimate(path, block, product + 4.0 * shape.channels * pixels**2, 16.0 * pixels**2)
    factor = None if path == "damped" else convolution.factor
    if not isinstance(factor, BandCholesky):
        cost, each = convolution.dissection.cost, factor.dtype.itemsize if factor else 8
        return Estimate(path, cost.operations, product + cost.solve, cost.numbers * each)
    band = factor.width
    if path == "column":
        return Estimate(path, n * band**2, product + 4.0 * n * band, 8.0 * n * band)
    wide, few = convolution.shape[0], gradient.shape[0]
    return Estimate(path, wide * band**2 + n * few**2, 0.0, 8.0 * (wide * band + n * few))
