"""docs/rank_identity.md: c(M) and RA-i of random small networks, against dense systems."""

import math
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chains import chain, conv, conv_shapes, dense_rank, image
from conftest import ROOT
from gradleak.analysis.copa_index import discount, index_from_ranks, layer_system, structural_index
from gradleak.analysis.rank_analysis import analyse, network_index
from gradleak.config import loader
from gradleak.models.initial import initial_weights
from gradleak.models.numpy_autodiff import deltas
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.structure import structural_rank
from gradleak.operators.system import LayerSystem
from pipeline_trees import whole

CONFIG = loader.load(whole())
PAGE = (ROOT / "docs/rank_identity.md").read_text()
LINES = re.findall(r"^\| ((?:cnn3|rgap)_.*) \|$", PAGE, re.M)
ROWS = [[cell.strip() for cell in line.split("|")] for line in LINES]


@st.composite
def networks(draw):
    """Chains of one to three small convolutions that fit their inputs."""
    side = left = draw(st.integers(5, 8))
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        kernel, stride, padding = (draw(st.integers(*r)) for r in ((1, 4), (1, 2), (0, 1)))
        assume(kernel <= left + 2 * padding)
        left = (left + 2 * padding - kernel) // stride + 1
        activation = draw(st.sampled_from(["identity", "tanh", "sigmoid"]))
        layers.append(conv(draw(st.integers(1, 5)), kernel, stride, padding, activation=activation))
    return chain(*layers, side=side, channels=draw(st.integers(1, 3)), classes=3)


def rank(matrix):
    found, clear = dense_rank(matrix)
    assume(clear)
    return found


def systems(network, seed):
    weights = {n: v.astype(np.float64) for n, v in initial_weights(network, seed).items()}
    found = deltas(network, weights, image(network, seed), 1)
    return [layer_system(layer, weights, found).dense() for layer in network.convolutions]


@settings(max_examples=60)
@given(networks(), st.integers(0, 100))
def test_free_directions_are_the_count_and_the_rows_that_follow_from_others(network, seed):
    """1 and 3, with the network's own counts and the dense system's rank."""
    counts, depth = analyse(network), len(network.convolutions)
    ranks, total = [], 0.0
    for place, (count, dense) in enumerate(zip(counts, systems(network, seed), strict=False)):
        assert dense.shape == (count.outputs + count.weights, count.unknowns)
        ranks.append(rank(dense))
        free, following = count.unknowns - ranks[-1], len(dense) - ranks[-1]
        assert free == count.local + following
        total += discount(place, depth) * (count.index + count.virtual + following)
    index = index_from_ranks(network, ranks)
    assert -index == pytest.approx(total)
    worst = network_index(network)
    if index == 0:
        assert worst <= -1
    if worst >= 0:
        assert index <= -(worst + 1) / depth + 1e-9


@settings(max_examples=60)
@given(conv_shapes(), st.integers(1, 5), st.integers(1, 5), st.integers(0, 100))
def test_at_least_so_many_rows_follow_from_others(shape, weight_rank, delta_rank, seed):
    """2: the dependencies are there and are as many as the page says, of filters alike too."""
    draw = np.random.default_rng(seed)

    def of_rank(most, *sides):
        return draw.standard_normal((sides[0], most)) @ draw.standard_normal((most, sides[1]))

    filters, places = shape.filters, shape.positions
    area = shape.channels * math.prod(shape.kernel)
    weight = of_rank(weight_rank, filters, area)
    delta = of_rank(delta_rank, filters, places)
    ranks = min(weight_rank, filters, area), min(delta_rank, filters, places)
    dense = LayerSystem(
        Convolution(weight.reshape(filters, shape.channels, *shape.kernel), shape),
        GradientConstraint(delta.reshape(filters, *shape.output), shape),
    ).dense()
    found = []
    for one in np.eye(filters**2).reshape(-1, filters, filters):
        found.append(np.concatenate([(one.T @ delta).ravel(), -(one @ weight).ravel()]))
        scale = np.linalg.norm(found[-1]) * np.linalg.norm(dense)
        assert np.linalg.norm(found[-1] @ dense) <= 1e-12 * scale
    known = filters**2 - (filters - ranks[0]) * (filters - ranks[1])
    assert np.linalg.matrix_rank(np.array(found), tol=1e-9) == known
    assert len(dense) - rank(dense) >= known >= 1


@settings(max_examples=25)
@given(networks(), st.lists(st.integers(0, 1000), min_size=2, max_size=2, unique=True))
def test_real_gradients_have_the_rank_of_almost_every_one(network, seeds):
    """4: two draws of weights and image give the same ranks; see `test_behind` for 5."""
    first, second = ([rank(dense) for dense in systems(network, seed)] for seed in seeds)
    assert first == second


@pytest.mark.parametrize("row", ROWS, ids=[" ".join(row[:2]) for row in ROWS])
def test_the_numbers_of_the_page_are_those_of_the_code(row):
    network = CONFIG.chain(row[0])
    place = [layer.name for layer in network.convolutions].index(row[1])
    count, found = analyse(network)[place], structural_rank(network.convolutions[place].shape)
    free = count.unknowns - found.bound
    following = count.weights + count.outputs - found.bound
    index, exact = structural_index(network)
    assert found.exact and exact
    expected = [count.unknowns, count.weights, count.outputs, count.local, following, free]
    expected += [count.virtual, count.index, index, network_index(network)]
    assert [float(value) for value in row[2:]] == expected


def test_what_the_page_says_of_single_networks():
    """5 asks for a W of full column rank; the converses fail."""
    for network in (CONFIG.chain(f"cnn3_v{variant}_tanh") for variant in (3, 4)):
        weight = initial_weights(network, 0)["conv2.weight"].astype(np.float64)
        second = Convolution(weight, network.convolutions[1].shape)
        assert second.is_tall and second.factor is not None
    deficient, fourth = (CONFIG.chain(f"rgap_{name}") for name in ("cnn6d", "fig2_d"))
    free = analyse(deficient)[1].unknowns - structural_rank(deficient.convolutions[1].shape).bound
    assert (analyse(deficient)[1].local, free) == (-312, 280)
    assert network_index(fourth) < 0 and structural_index(fourth)[0] < 0
    assert len(ROWS) == 10
