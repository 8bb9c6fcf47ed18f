"""Large layers: structured U^T U, K channel by channel, all against dense oracles."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chains import conv_shapes, padded_oracle
from chains import system as build
from gradleak.errors import NumericsError
from gradleak.operators import convolution as convolution_module
from gradleak.operators import gram
from gradleak.operators import system as system_module
from gradleak.operators.shape import ConvShape
from gradleak.operators.system import LayerSystem

SHAPES = conv_shapes(most_filters=8)
GRAM = ConvShape(3, 4, (3, 3), (2, 2), (1, 1), (8, 8))
BLOCKS = ConvShape(2, 8, (3, 3), (1, 1), (1, 1), (5, 5))
# Stride 2 leaves phases of pixels without enough rows, as in the second layer of CNN6-d.
DEFICIENT = ConvShape(4, 3, (3, 3), (2, 2), (1, 1), (9, 9))


@pytest.fixture(autouse=True, scope="module")
def large():
    """Take every layer for one that is too large for the dense and the banded paths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_module, "DENSE_LIMIT", 0)
        patch.setattr(convolution_module, "FACTOR_WORK", -1)
        yield


def singular_values(whole):
    """Those of U, where they leave no doubt which are 0 and are not too far apart."""
    values = np.linalg.svd(whole.dense(), compute_uv=False)
    values = values[values > 1e-11 * values[0]]
    assume(values.size and values[-1] > 1e-4 * values[0])
    return values


def rounding(system):
    """What rounding may leave of a solution, relative to its length.

    Normal equations lose eps·cond(U)². Where U has a null space, each of two rounds leaves
    eps·||U||²/damping of x there, and the filter after it multiplies that by as much again.
    """
    values = np.linalg.svd(system.dense(), compute_uv=False)
    seen = values[values > 1e-11 * values[0]]
    eps = np.finfo(float).eps
    bound = max(system.shape) * eps * (seen[0] / seen[-1]) ** 2
    if system.path == "gram" and seen.size < system.shape[1]:
        bound += (eps * seen[0] ** 2 / system._factor.damping) ** 2
    return bound


def assert_solves(system, step, expected):
    assert np.linalg.norm(step - expected) <= rounding(system) * np.linalg.norm(expected)


@given(SHAPES, st.integers(0, 1000), st.booleans(), st.booleans())
@settings(max_examples=50, deadline=None)
def test_the_normal_matrix_is_that_of_the_dense_system(shape, seed, masked, pinned):
    whole = build(shape, seed, masked=masked, pinned=pinned)
    dense = whole.dense()
    generator = np.random.default_rng(seed)
    x, y = (generator.standard_normal(n) for n in (dense.shape[1], dense.shape[0]))
    np.testing.assert_allclose(whole.apply(x), dense @ x, atol=1e-11)
    np.testing.assert_allclose(whole.adjoint(y), dense.T @ y, atol=1e-11)
    found = gram.normal_matrix(whole.convolution, whole.gradient, whole.keep, whole.pinned)
    np.testing.assert_allclose(found, dense.T @ dense, atol=1e-10)


@given(SHAPES, st.integers(0, 1000), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_solve_is_the_minimum_norm_least_squares_solution(shape, seed, masked, pinned):
    whole = build(shape, seed, masked=masked, pinned=pinned)
    assert whole.path in ("blocks", "gram")
    singular_values(whole)
    generator = np.random.default_rng(seed + 1)
    values = generator.standard_normal(whole.shape[0])
    start = generator.standard_normal(whole.shape[1])
    inverse = np.linalg.pinv(whole.dense(), rcond=1e-11)
    found = whole.solve(values)
    assert_solves(whole, found.x, inverse @ values)
    assert found.stop in ("converged", "stalled")
    assert found.residual == pytest.approx(np.linalg.norm(whole.apply(found.x) - values))
    step = inverse @ (values - whole.apply(start))
    assert_solves(whole, whole.solve(values, start).x - start, step)


@given(SHAPES, st.integers(0, 1000), st.booleans(), st.sampled_from([1.0, 1e-4, 1e-8]))
@settings(max_examples=40, deadline=None)
def test_a_balanced_solve_keeps_what_small_gradients_tell(shape, seed, masked, scale):
    whole = build(shape, seed, scale, masked)
    singular_values(whole.balanced())
    truth = np.random.default_rng(seed).standard_normal(whole.shape[1])
    dense = whole.balanced().dense()
    expected = np.linalg.pinv(dense, rcond=1e-11) @ (dense @ truth)
    system, values = whole.balance(whole.apply(truth))
    assert_solves(system, system.solve(values).x, expected)


def test_a_balanced_solve_weighs_the_rows_of_each_filter():
    whole = build(DEFICIENT, 2, 1e-3)
    values = np.random.default_rng(3).standard_normal(whole.shape[0])
    rows = np.linalg.norm(whole.convolution.weight) / np.sqrt(DEFICIENT.filters)
    factors = rows / np.linalg.norm(whole.gradient.delta, axis=1)
    weights = np.ones(whole.shape[0])
    weights[whole.split :] = np.repeat(factors, whole.gradient.shape[0] // DEFICIENT.filters)
    inverse = np.linalg.pinv(weights[:, None] * whole.dense(), rcond=1e-11)
    system, scaled = whole.balance(values)
    assert_solves(system, system.solve(scaled).x, inverse @ (weights * values))


def test_small_gradients_correct_the_errors_of_z_in_balance():
    """W is square and poorly conditioned; z is off by 1e-5 of itself, gradients by rounding."""
    whole = build(ConvShape(8, 8, (3, 3), (1, 1), (1, 1), (6, 6)), 4, 1e-4)
    generator = np.random.default_rng(5)
    truth = generator.standard_normal(whole.shape[1])
    values = whole.apply(truth).astype(np.float32).astype(np.float64)
    values[: whole.split] *= 1.0 + 1e-5 * generator.standard_normal(whole.split)
    system, scaled = whole.balance(values)
    plain = np.linalg.norm(whole.solve(values).x - truth)
    balanced = np.linalg.norm(system.solve(scaled).x - truth)
    assert balanced < 0.1 * plain


@given(SHAPES, st.integers(0, 1000), st.booleans(), st.sampled_from([1.0, 1e-4]))
@settings(max_examples=60, deadline=None)
def test_rank_matches_singular_values(shape, seed, masked, scale):
    whole = build(shape, seed, scale, masked)
    values = np.linalg.svd(whole.balanced().dense(), compute_uv=False)
    assert whole.rank == int(np.sum(values > 1e-10 * values[0]))


@pytest.mark.parametrize("shape", [GRAM, BLOCKS, DEFICIENT])
def test_condition_number_with_padding_known_and_unknown(shape):
    whole = build(shape, 6, 0.1)
    for padding, dense in (("known", whole.dense()), ("unknowns", padded_oracle(whole))):
        values = np.linalg.svd(dense, compute_uv=False)
        values = values[values > 1e-11 * values[0]]
        expected = pytest.approx(values[0] / values[-1], rel=1e-2)
        assert whole.condition(padding) == expected


def test_paths_and_ranks():
    assert build(GRAM).path == "gram"
    assert build(BLOCKS).path == "blocks"
    assert build(BLOCKS, scale=1e-3).path == "gram"
    assert build(DEFICIENT).path == "gram"
    assert build(DEFICIENT).rank < DEFICIENT.unknowns
    assert build(BLOCKS, scale=1e-3).rank == BLOCKS.unknowns
    # CNN6-d's second layer: 3188 of 3468, where the sizes alone would allow 3380.
    assert build(ConvShape(12, 20, (3, 3), (2, 2), (1, 1), (17, 17)), 0, 1e-3).rank == 3188


def test_conjugate_gradients_that_do_not_end_are_replaced(monkeypatch):
    whole = build(BLOCKS, 7)
    values = np.random.default_rng(8).standard_normal(whole.shape[0])
    expected = np.linalg.lstsq(whole.dense(), values, rcond=None)[0]
    whole.solve(values)
    monkeypatch.setattr(
        gram, "refined_solve", lambda *_: (np.full(whole.shape[1], np.nan), 1, "iteration limit")
    )
    np.testing.assert_allclose(whole.solve(values).x, expected, atol=1e-9)


def test_a_matrix_that_is_not_quite_semidefinite_gets_more_damping():
    matrix = np.diag([1.0, 0.5, -1e-10])
    matrix[0, 1] = matrix[1, 0] = 0.1
    original = matrix.copy()
    factor = gram.NormalFactor(matrix)
    assert factor.damping > 1e-10
    assert factor.suspects == 1
    damped = original + factor.damping * np.eye(3)
    rhs = np.array([1.0, 2.0, 0.0])
    np.testing.assert_allclose(factor.solve(rhs), np.linalg.solve(damped, rhs), rtol=1e-9)


def test_what_cannot_be_solved_is_refused(monkeypatch):
    whole, pinned = build(GRAM), build(GRAM, pinned=True)
    parts = whole.convolution, whole.gradient
    for call, words in (
        (lambda: LayerSystem(*parts, np.ones(3, dtype=bool)), "mask 'keep' must be"),
        (lambda: LayerSystem(*parts, None, np.ones(whole.shape[1])), "mask 'pinned' must be"),
        (lambda: whole.condition("some"), "padding is 'some'"),
        (lambda: pinned.condition("unknowns"), "Padded pixels"),
    ):
        with pytest.raises(NumericsError, match=words):
            call()
    monkeypatch.setattr(gram, "MATRIX_BYTES", 100)
    with pytest.raises(NumericsError, match="needs a matrix of"):
        whole.solve(np.zeros(whole.shape[0]))
