"""Small parts of layer operators, each against its definition."""

import numpy as np
import pytest
from scipy import sparse

from gradleak.errors import NumericsError
from gradleak.operators import gram
from gradleak.operators.band import BandCholesky
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import _boxes_after, _boxes_before
from gradleak.operators.system import LayerSystem


def system(shape):
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((shape.filters, shape.channels, *shape.kernel))
    delta = draw.standard_normal((shape.filters, *shape.output))
    return LayerSystem(Convolution(weight, shape), GradientConstraint(delta, shape))


def test_the_condition_of_a_tiny_matrix():
    matrix = sparse.csr_matrix(np.diag([2.0, 10.0]))
    assert BandCholesky(matrix, np.arange(2)).condition() == pytest.approx(5.0)


def test_a_direct_solution_takes_no_steps():
    whole = system(ConvShape(4, 2, (3, 3), (2, 2), (0, 0), (9, 9)))
    found = whole.solve(whole.apply(np.ones(whole.shape[1])))
    assert (whole.path, found.iterations, found.stop) == ("row", 0, "direct")


def test_a_matrix_of_just_so_many_bytes_is_built(monkeypatch):
    whole = system(ConvShape(1, 2, (2, 2), (1, 1), (0, 0), (4, 4)))
    monkeypatch.setattr(gram, "MATRIX_BYTES", 8 * 16 * 16)
    assert gram.normal_matrix(whole.convolution, whole.gradient).shape == (16, 16)
    monkeypatch.setattr(gram, "MATRIX_BYTES", 8 * 16 * 16 - 1)
    with pytest.raises(NumericsError, match="needs a matrix of"):
        gram.normal_matrix(whole.convolution, whole.gradient)


def test_phases_are_sorted_by_their_kernels_size():
    shape = ConvShape(1, 2, (3, 5), (2, 2), (0, 0), (9, 11))
    assert shape.phase_channels == [(1, 2), (1, 3), (2, 2), (2, 3)]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_boxes_are_counted(step):
    """Those of the chains' proof: the fewest of a row, a step apart, that reach the last pixel."""
    for length in range(1, 12):
        for side in range(1, 5):
            ends = [number * step + side for number in range(length + 1)]
            fewest = next(k for k, end in enumerate(ends, start=1) if end >= length)
            assert _boxes_after(length, side, step) == fewest
        starts = [number * step for number in range(length + 1)]
        fewest = next(k for k, start in enumerate(starts, start=1) if start >= length - 1)
        assert _boxes_before(length, 1, step) == fewest
    assert [_boxes_after(0, 2, step), _boxes_before(0, 0, step), _boxes_before(0, 2, step)] == [
        0,
        0,
        1,
    ]
