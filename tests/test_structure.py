"""Structural rank against the dense system, built pixel by pixel from its definition."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import conv_shapes
from gradleak.errors import ConfigError
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import (
    CHAINS,
    PATCHES,
    ROW_LIMITED,
    SINGLE_FILTER,
    exact_domain,
    rank_bound,
    structural_rank,
)

CNN3 = [
    (ConvShape(3, 6, (3, 3), (1, 1), (0, 0), (32, 32)), 3072, CHAINS),
    (ConvShape(6, 3, (4, 4), (2, 2), (0, 0), (30, 30)), 867, ROW_LIMITED),
    (ConvShape(3, 6, (4, 4), (2, 2), (0, 0), (32, 32)), 1602, ROW_LIMITED),
    (ConvShape(6, 3, (3, 3), (2, 2), (0, 0), (15, 15)), 300, ROW_LIMITED),
    (ConvShape(6, 9, (3, 3), (1, 1), (0, 0), (30, 30)), 5400, CHAINS),
    (ConvShape(3, 1, (3, 3), (1, 1), (0, 0), (32, 32)), 926, SINGLE_FILTER),
    (ConvShape(1, 6, (3, 3), (1, 1), (0, 0), (30, 30)), 900, CHAINS),
]
CNN6D_CONV2 = ConvShape(12, 20, (3, 3), (2, 2), (1, 1), (17, 17))

# One layer per way into a domain: stride, rectangles, padding, one position, gaps between windows.
GRID = [
    (ConvShape(1, 9, (3, 3), (1, 1), (0, 0), (6, 6)), PATCHES),
    (ConvShape(3, 4, (3, 2), (1, 1), (0, 0), (4, 3)), PATCHES),
    (ConvShape(2, 8, (3, 3), (2, 2), (2, 2), (5, 6)), PATCHES),
    (ConvShape(2, 7, (2, 1), (3, 2), (0, 0), (8, 7)), PATCHES),
    (ConvShape(1, 4, (3, 3), (1, 1), (1, 1), (7, 7)), PATCHES),
    (ConvShape(3, 1, (3, 3), (1, 1), (0, 0), (7, 8)), SINGLE_FILTER),
    (ConvShape(2, 1, (2, 4), (3, 2), (0, 0), (8, 8)), SINGLE_FILTER),
    (ConvShape(4, 2, (3, 3), (1, 1), (0, 0), (9, 9)), ROW_LIMITED),
    (ConvShape(2, 2, (2, 2), (1, 1), (0, 0), (5, 5)), ROW_LIMITED),
    (ConvShape(3, 3, (2, 3), (1, 1), (0, 0), (7, 8)), ROW_LIMITED),
    (ConvShape(2, 3, (3, 3), (2, 2), (0, 0), (9, 9)), ROW_LIMITED),
    (ConvShape(3, 5, (2, 2), (3, 3), (0, 0), (9, 9)), ROW_LIMITED),
    (ConvShape(4, 3, (1, 4), (1, 2), (0, 0), (6, 9)), ROW_LIMITED),
    (ConvShape(2, 2, (3, 1), (1, 1), (0, 0), (8, 4)), ROW_LIMITED),
    (ConvShape(3, 6, (3, 3), (1, 1), (0, 0), (8, 8)), CHAINS),
    (ConvShape(4, 6, (2, 2), (1, 1), (0, 0), (7, 7)), CHAINS),
    (ConvShape(1, 6, (4, 4), (2, 2), (0, 0), (10, 10)), CHAINS),
    (ConvShape(1, 6, (3, 3), (2, 2), (0, 0), (9, 9)), CHAINS),
    (ConvShape(5, 7, (1, 3), (1, 1), (0, 0), (5, 9)), CHAINS),
    (ConvShape(2, 5, (3, 3), (1, 1), (1, 1), (6, 7)), CHAINS),
]


def dense_system(shape, seed):
    """Rows of U for Gaussian w and delta, from eq. 1 and nothing of the module under test."""
    rng = np.random.default_rng(seed)
    (high, wide), (k_h, k_w), (p_h, p_w) = shape.size, shape.kernel, shape.padding
    rows = range(0, high + 2 * p_h - k_h + 1, shape.stride[0])
    columns = range(0, wide + 2 * p_w - k_w + 1, shape.stride[1])
    w = rng.standard_normal((shape.filters, shape.channels, k_h, k_w))
    delta = rng.standard_normal((shape.filters, len(rows), len(columns)))
    padded = (shape.channels, high + 2 * p_h, wide + 2 * p_w)
    impulses = np.zeros((shape.channels, high, wide, *padded))
    for pixel in np.ndindex(shape.channels, high, wide):
        impulses[(*pixel, pixel[0], pixel[1] + p_h, pixel[2] + p_w)] = 1
    forward, gradient = [], 0.0
    for (i, top), (j, left) in product(enumerate(rows), enumerate(columns)):
        window = impulses[..., top : top + k_h, left : left + k_w]
        forward.append(np.einsum("abcdef,odef->oabc", window, w).reshape(shape.filters, -1))
        gradient = gradient + np.einsum("abcdef,o->odefabc", window, delta[:, i, j])
    return np.concatenate([*forward, np.reshape(gradient, (-1, forward[0].shape[1]))])


def numerical_rank(system):
    norms = np.linalg.norm(system, axis=1)
    values = np.linalg.svd(system[norms > 0] / norms[norms > 0, None], compute_uv=False)
    return int((values > 1e-11 * values[:1].max(initial=0)).sum())


@settings(max_examples=150)
@given(conv_shapes(8, 8, 5, 4), st.integers(0, 2**32 - 1))
def test_bound_holds_and_is_met_on_the_domain(shape, seed):
    rank = numerical_rank(dense_system(shape, seed))
    result = structural_rank(shape)
    assert rank <= result.bound <= min(shape.covered, shape.rows)
    if result.exact:
        assert rank == result.bound


@pytest.mark.parametrize(("shape", "domain"), GRID)
def test_every_domain_has_layers_and_its_rank(shape, domain):
    assert exact_domain(shape) == domain
    assert numerical_rank(dense_system(shape, 7)) == rank_bound(shape)


@pytest.mark.parametrize(("shape", "rank", "domain"), CNN3)
def test_layers_of_the_paper(shape, rank, domain):
    result = structural_rank(shape)
    assert (result.bound, result.domain, result.exact) == (rank, domain, True)
    if shape in (CNN3[3][0], CNN3[6][0]):  # small enough for the dense system
        assert numerical_rank(dense_system(shape, 1)) == rank


def test_phases_sharpen_the_bound_under_stride():
    assert rank_bound(CNN6D_CONV2) == 3188
    assert exact_domain(CNN6D_CONV2) is None
    small = ConvShape(3, 5, (3, 3), (2, 2), (1, 1), (9, 9))
    assert numerical_rank(dense_system(small, 3)) == rank_bound(small)
    assert rank_bound(small) < min(small.covered, small.rows - small.filters**2)


def test_first_layer_of_rgap_lacks_rows():
    """R-GAP, Table 3: 405 more pixels than rows, and O^2 rows depend on the others."""
    shape = ConvShape(3, 3, (4, 4), (1, 1), (0, 0), (32, 32))
    assert shape.unknowns - shape.rows == 405
    result = structural_rank(shape)
    assert (result.bound, result.domain) == (shape.rows - 9, ROW_LIMITED)


def test_outside_the_domain_the_bound_can_be_loose():
    for shape in (
        ConvShape(3, 2, (2, 2), (1, 1), (0, 0), (3, 3)),
        ConvShape(4, 3, (2, 3), (1, 1), (0, 0), (7, 3)),
        ConvShape(5, 1, (3, 3), (3, 3), (2, 1), (2, 9)),
    ):
        assert not structural_rank(shape).exact
        assert numerical_rank(dense_system(shape, 5)) < rank_bound(shape)


def test_counts():
    shape = ConvShape(2, 3, (2, 3), (3, 2), (0, 1), (8, 6))
    assert (shape.positions, shape.unknowns, shape.rows) == (3 * 3, 96, 3 * (9 + 12))
    assert shape.covered == 2 * 6 * 6


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("channels", 0, "channels is 0"),
        ("filters", -2, "filters is -2"),
        ("filters", True, "filters is True"),
        ("kernel", (0, 3), "kernel is"),
        ("stride", (1, 1.5), "stride is"),
        ("padding", (-1, 0), "padding is"),
        ("size", (8,), "size is"),
        ("size", (8, 2), "kernel 3 does not fit an input of 2"),
    ],
)
def test_sizes_that_cannot_be(name, value, words):
    with pytest.raises(ConfigError, match=words):
        replace(ConvShape(2, 3, (3, 3), (1, 1), (0, 0), (8, 8)), **{name: value})
