"""Ranks of chains whose later layers skip positions or narrow, against dense systems."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from chains import chain, conv, dense_rank, image, view
from gradleak.analysis.copa_index import (
    behind,
    index_from_ranks,
    layer_rows,
    layer_system,
    reported_rank,
    structural_index,
)
from gradleak.attacks.closed_form.layerwise import ConvolutionCache, walk
from gradleak.attacks.closed_form.rgap import minimum_norm
from gradleak.models.initial import initial_weights
from gradleak.models.numpy_autodiff import deltas
from gradleak.operators.behind import PRIME, Behind, _has_full_row_rank
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import CHAINS, PATCHES, ROW_LIMITED, structural_rank

# Issue 26's networks: a 1x1 window of stride 2, a rim that no window meets, both with 11 filters.
SKIPPED = chain(conv(5, 5, 2), conv(4, 1, 2), channels=5, side=7)
RIM = chain(conv(5, 2, 2), conv(2, 2, 2), channels=3, side=7)
WIDE = chain(conv(11, 5, 2), conv(9, 1, 2), channels=3, side=8, classes=10)
ACTIVATIONS = ("identity", "tanh", "sigmoid", "leaky_relu", "relu")


@st.composite
def networks(draw):
    """Two or three convolutions; strides beyond kernels, rims, padding, 1x1 filters that narrow."""
    side = left = draw(st.integers(4, 9))
    layers = []
    for place in range(draw(st.integers(2, 3))):
        kernel = draw(st.integers(1, 5) if place == 0 else st.sampled_from((1, 1, 2, 2, 3, 4)))
        stride, padding = draw(st.integers(1, 3)), draw(st.sampled_from((0, 0, 1)))
        assume(kernel <= left + 2 * padding)
        left = (left + 2 * padding - kernel) // stride + 1
        filters, activation = draw(st.integers(1, 6)), draw(st.sampled_from(ACTIVATIONS))
        layers.append(conv(filters, kernel, stride, padding, activation=activation, slope=0.3))
    return chain(*layers, side=side, channels=draw(st.integers(1, 5)), classes=3)


def drawn(network, seed):
    """Weights of unit scale and dJ/dZ at a random image."""
    draw, weights = np.random.default_rng(seed).standard_normal, {}
    for name, one in initial_weights(network, seed).items():
        # Slopes of Tanh and Sigmoid stay far from 0 as long as linear outputs are of order 1.
        length = np.sqrt(one[0].size) if name.endswith("weight") else 10
        weights[name] = draw(one.shape) / length
    return weights, deltas(network, weights, image(network, seed), 1)


def first_of(network):
    """The first layer's rank from sizes alone."""
    layer = network.convolutions[0]
    return structural_rank(layer.shape, behind(network, layer))


@settings(max_examples=40)
@given(networks(), st.integers(0, 1000))
@example(SKIPPED, 0)
@example(RIM, 0)
@example(WIDE, 0)
def test_reported_ranks_are_those_of_the_dense_system(network, seed):
    weights, found = drawn(network, seed)
    true = []
    for layer, row in zip(network.convolutions, layer_rows(network, weights, found), strict=True):
        system, follows = layer_system(layer, weights, found), behind(network, layer)
        rank, clear = dense_rank(system.dense())
        assume(clear)
        true.append(rank)
        sizes = structural_rank(layer.shape, follows)
        assert (row["rank"], row["bound"]) == (true[-1], sizes.bound)
        assert reported_rank(system, follows)[0] == true[-1] <= sizes.bound
        assert row["exact"] == (row["rank_method"] == "structural")
        assert true[-1] == sizes.bound or not sizes.exact
    (index, exact), truth = structural_index(network), index_from_ranks(network, true)
    assert index == truth or (index > truth and not exact)


@pytest.mark.parametrize(
    ("network", "rank", "without", "index"),
    [(SKIPPED, 140, 245, -112.5), (RIM, 73, 80, -86.5), (WIDE, 108, 147, None)],
)
def test_positions_that_no_window_behind_meets_lower_the_bound(network, rank, without, index):
    assert structural_rank(network.convolutions[0].shape).bound == without
    found, rows = first_of(network), layer_rows(network, *drawn(network, 0))
    assert (found.bound, found.exact) == (rank, False)
    assert (rows[0]["rank"], rows[0]["rank_method"], rows[0]["exact"]) == (rank, "numerical", False)
    if index is not None:
        assert sum(row["contribution"] for row in rows) == index
        assert structural_index(network) == (index, False)


def test_a_rim_that_does_not_lower_the_bound_leaves_the_proof_to_a_measurement():
    """Of copa_index: 3072 by chains, whose corner is on the rim, and 3072 in fact."""
    network = chain(conv(8, 3, padding=1), conv(3, 3, 2), channels=3, side=12)
    found = first_of(network)
    assert (found.bound, found.domain, found.exact) == (432, CHAINS, False)
    row = layer_rows(network, *drawn(network, 0))[0]
    assert (row["rank"], row["numerical"], row["exact"]) == (432, 432, True)


def test_zeros_pass_through_several_layers_behind():
    """Of 9 positions the last layer meets one in three, and the one before shifts these by one."""
    network = chain(conv(3, 1), conv(3, 2), conv(3, 1, 3), side=9, channels=1)
    first = network.convolutions[0]
    rows, columns = behind(network, first).seen(first.shape)
    assert rows.tolist() == columns.tolist() == [True, True, False] * 3
    met = drawn(network, 0)[1]["conv1"].any(axis=0)
    assert (met == np.outer(rows, columns)).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_filter_behind_is_enough_for_as_many_units_as_it_has(activation):
    """CNN3's variant 1 in small: solved in chains from two corners, so two filters behind do."""
    exact = {}
    for filters in (1, 2, 6):
        found = first_of(chain(conv(6, 3, activation=activation), conv(filters, 4, 2), side=14))
        exact[filters] = found.exact
        assert found.domain is not None and found.attained == found.exact
    smooth = activation != "relu"
    assert exact == {1: False, 2: smooth, 6: smooth}
    # More filters than values in a patch, so that a ReLU may take what it likes of dJ/dZ.
    found = first_of(chain(conv(9, 2, activation="relu"), conv(1, 1, 4), side=6))
    assert (found.domain, found.exact, found.bound) == (PATCHES, True, 72)


def test_an_instance_proves_the_rank_of_a_layer_before_one_that_narrows():
    """CNN3's variant 2 in small: six filters, three behind."""
    network = chain(conv(6, 4, 2), conv(3, 3, 2), channels=3, side=16)
    layer = network.convolutions[0]
    assert behind(network, layer).filters(layer.shape) == 3 < layer.shape.filters
    found = first_of(network)
    assert (found.domain, found.exact, found.bound) == (ROW_LIMITED, True, layer.shape.rows - 36)
    assert dense_rank(layer_system(layer, *drawn(network, 1)).dense()) == (found.bound, True)


def test_products_of_two_filters_with_a_common_gradient_are_not_independent():
    shape = ConvShape(4, 2, (2, 2), (1, 1), (0, 0), (6, 6))
    narrow = ConvShape(2, 1, (1, 1), (1, 1), (0, 0), (5, 5))
    assert Behind().are_independent(shape, (2, 2))
    # One gradient, times one weight for each of the two.
    assert not Behind((narrow,)).are_independent(shape, (2, 2))
    assert not Behind(smooth=False).are_independent(shape, (2, 2))


def test_rows_are_independent_modulo_a_prime():
    matrix = np.array([[0, 2, 1], [3, 1, 4], [5, 0, 7]])
    assert _has_full_row_rank(matrix.copy())
    matrix[2] = (PRIME - 2) * matrix[0] % PRIME + 5 * matrix[1]
    assert not _has_full_row_rank(matrix % PRIME)


def test_behind_pools_norms_and_skips_nothing_is_taken_to_be_known():
    for layers in (
        (conv(4, 3), conv(4, 3, pool="average")),
        (conv(4, 3, norm="batch"), conv(4, 3)),
        (conv(4, 3), conv(4, 3, padding=1, skip=1)),
    ):
        network = chain(*layers, channels=4, side=8)
        assert behind(network, network.convolutions[0]) == Behind(smooth=False)


def test_equal_filters_are_left_to_the_numerical_rank():
    network = chain(conv(3, 2), channels=4, side=5)
    layer = network.convolutions[0]
    weights, found = drawn(network, 0)
    follows = behind(network, layer)
    assert reported_rank(layer_system(layer, weights, found), follows)[1] == "structural"
    weights["conv1.weight"][1] = weights["conv1.weight"][0]
    system = layer_system(layer, weights, found)
    rank, method, structure = reported_rank(system, follows)
    assert structure.exact and method == "numerical"
    assert (rank, True) == dense_rank(system.dense()) and rank < structure.bound


def test_a_walk_says_how_many_unknowns_skipped_positions_leave_free():
    found = walk(view(SKIPPED, image(SKIPPED)), ConvolutionCache(), minimum_norm)
    assert {facts.layer: facts.free for facts in found.layers}["conv1"] == 245 - 140
