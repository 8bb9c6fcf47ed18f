"""Operators, systems and normal equations, on every path of solving, against dense oracles."""

from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import sparse

from chains import conv_shapes, padded_oracle, parts, system
from gradleak.errors import NumericsError
from gradleak.operators import gram, limits
from gradleak.operators import system as module
from gradleak.operators.convolution import BandCholesky, Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import _boxes_after, _boxes_before, structural_rank
from gradleak.operators.system import LayerSystem

COLUMN = ConvShape(2, 6, (3, 3), (1, 1), (0, 0), (8, 8))
ROW = ConvShape(4, 2, (3, 3), (2, 2), (0, 0), (9, 9))
# A corner output meets one pixel of each of 2 channels, but has 4 filters.
DENSE = ConvShape(2, 4, (2, 2), (2, 2), (1, 1), (8, 8))
OUTWEIGHED = ConvShape(6, 16, (3, 3), (2, 1), (2, 2), (15, 7))
GRAM = ConvShape(3, 4, (3, 3), (2, 2), (1, 1), (8, 8))
BLOCKS = ConvShape(2, 8, (3, 3), (1, 1), (1, 1), (5, 5))
# Stride 2 leaves phases of pixels without enough rows, as in the second layer of CNN6-d.
DEFICIENT = ConvShape(4, 3, (3, 3), (2, 2), (1, 1), (9, 9))
SHAPES, MANY, SEEDS = conv_shapes(), conv_shapes(most_filters=8), st.integers(0, 1000)


@contextmanager
def large():
    """Take every layer for one that is too large for the dense and the banded paths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DENSE_LIMIT", 0)
        patch.setattr(limits, "FACTOR_WORK", -1)
        yield


def singular_values(matrix):
    values = np.linalg.svd(matrix, compute_uv=False)
    return values[values > 1e-11 * values[0]]


def assume_clear(whole):
    """Go on where no singular value leaves a doubt whether it is 0."""
    values = singular_values(whole.dense())
    assume(values.size and values[-1] > 1e-4 * values[0])


def assert_solves(system, step, expected, values, start=0.0):
    """Compare a solution of U x = `values`, less `start`, with one by the dense pseudo-inverse.

    Normal equations lose eps·cond(U)² of x, of the right-hand side over ||U||, and of the start,
    and as much of the relative error at which conjugate gradients end. Where U has a null space,
    each of two rounds leaves eps·||U||²/damping of them there. The filter after it multiplies that
    by as much again.
    """
    seen, eps = singular_values(system.dense()), np.finfo(float).eps
    left = max(system.shape) * eps + np.sqrt(gram.CG_TOLERANCE)
    bound = left * (seen[0] / seen[-1]) ** 2
    if system.path == "gram" and seen.size < system.shape[1]:
        assert system._factor.suspects
        bound += (eps * seen[0] ** 2 / system._factor.damping) ** 2
    sizes = expected, values / seen[0], start
    size = sum(float(np.linalg.norm(one)) for one in sizes)
    assert np.linalg.norm(step - expected) <= bound * size


def dense_by_torch(shape, weight, delta):
    """U column by column: W from conv2d, K from autograd's own weight gradient."""
    columns = []
    for unit in torch.eye(shape.unknowns, dtype=torch.float64):
        w = torch.from_numpy(weight).requires_grad_()
        x = unit.reshape(1, shape.channels, *shape.size)
        out = torch.nn.functional.conv2d(x, w, None, shape.stride, shape.padding)
        (gradient,) = torch.autograd.grad(out, w, torch.from_numpy(delta)[None])
        columns.append(torch.cat([out.detach().ravel(), gradient.ravel()]))
    return torch.stack(columns, dim=1).numpy()


def assert_operates(operator, dense, seed):
    generator = np.random.default_rng(seed)
    u, v = (generator.standard_normal(n) for n in (dense.shape[1], dense.shape[0]))
    np.testing.assert_allclose(operator.apply(u), dense @ u, atol=1e-11)
    np.testing.assert_allclose(operator.adjoint(v), dense.T @ v, atol=1e-11)
    assert operator.apply(u) @ v == pytest.approx(u @ operator.adjoint(v), rel=1e-9, abs=1e-9)


@given(SHAPES, SEEDS)
@settings(max_examples=60)
def test_operators_match_autograd_and_their_adjoints(shape, seed):
    weight, delta, _ = parts(shape, seed)
    whole, truth = system(shape, seed), dense_by_torch(shape, weight, delta)
    for operator, dense in (
        (whole, truth),
        (whole.convolution, truth[: whole.split]),
        (whole.gradient, truth[whole.split :]),
    ):
        assert operator.shape == dense.shape
        np.testing.assert_allclose(operator.dense(), dense, atol=1e-12)
        assert_operates(operator, dense, seed)


@given(MANY, SEEDS, st.booleans(), st.booleans())
@settings(max_examples=50)
@large()
def test_the_normal_matrix_is_that_of_the_dense_system(shape, seed, masked, pinned):
    whole = system(shape, seed, masked=masked, pinned=pinned)
    assert_operates(whole, dense := whole.dense(), seed)
    found = gram.normal_matrix(whole.convolution, whole.gradient, whole.keep, whole.pinned)
    np.testing.assert_allclose(found, dense.T @ dense, atol=1e-10)
    assert whole.weights.square() == pytest.approx(np.square(dense[: whole.split]).sum())


def solved(whole, seed):
    """Solutions from 0 and from a start with what they should be, right-hand side and start."""
    generator = np.random.default_rng(seed + 1)
    values, start = (generator.standard_normal(size) for size in whole.shape)
    inverse = np.linalg.pinv(whole.dense(), rcond=1e-11)
    step = inverse @ (values - whole.apply(start))
    from_zero, from_start = whole.solve(values), whole.solve(values, start)
    return from_zero, inverse @ values, (from_start.x - start, step), values, start


@given(SHAPES, SEEDS)
@settings(max_examples=60)
def test_solve_is_the_minimum_norm_least_squares_solution(shape, seed):
    found, expected, steps, *_ = solved(system(shape, seed), seed)
    np.testing.assert_allclose(found.x, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(*steps, rtol=1e-5, atol=1e-6)


@given(MANY, SEEDS, st.booleans(), st.booleans())
@example(ConvShape(3, 3, (2, 2), (2, 2), (2, 2), (2, 8)), 120, False, False)  # no small pivot
@settings(max_examples=60)
@large()
def test_so_it_is_of_large_systems(shape, seed, masked, pinned):
    whole = system(shape, seed, masked=masked, pinned=pinned)
    assert whole.path in ("blocks", "gram")
    assume_clear(whole)
    found, expected, steps, values, start = solved(whole, seed)
    assert_solves(whole, found.x, expected, values)
    assert_solves(whole, *steps, values, start)
    assert found.stop in ("converged", "stalled")
    assert found.residual == pytest.approx(np.linalg.norm(whole.apply(found.x) - values))


@given(SHAPES, SEEDS, st.sampled_from([1e-4, 1e-8]))
@settings(max_examples=40)
def test_solve_keeps_what_small_gradients_tell(shape, seed, scale):
    """Gradients are often orders of magnitude below the weights; on consistent data all counts."""
    whole = system(shape, seed, scale)
    balanced = whole.dense()
    balanced[whole.split :] /= scale
    truth = np.random.default_rng(seed).standard_normal(whole.shape[1])
    expected = np.linalg.pinv(balanced, rcond=1e-11) @ (balanced @ truth)
    found = whole.solve(whole.apply(truth)).x
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@given(MANY, SEEDS, st.booleans(), st.sampled_from([1.0, 1e-4, 1e-8]))
@settings(max_examples=40)
@large()
def test_a_balanced_solve_keeps_what_small_gradients_tell(shape, seed, masked, scale):
    whole = system(shape, seed, scale, masked)
    assume_clear(whole.balanced())
    truth = np.random.default_rng(seed).standard_normal(whole.shape[1])
    dense = whole.balanced().dense()
    expected = np.linalg.pinv(dense, rcond=1e-11) @ (dense @ truth)
    balanced, values = whole.balance(whole.apply(truth))
    assert_solves(balanced, balanced.solve(values).x, expected, values)


@large()
def test_a_balanced_solve_weighs_the_rows_of_each_filter():
    whole = system(DEFICIENT, 2, 1e-3)
    values = np.random.default_rng(3).standard_normal(whole.shape[0])
    rows = np.linalg.norm(whole.convolution.weight) / np.sqrt(DEFICIENT.filters)
    factors = rows / np.linalg.norm(whole.gradient.delta, axis=1)
    weights = np.ones(whole.shape[0])
    weights[whole.split :] = np.repeat(factors, whole.gradient.shape[0] // DEFICIENT.filters)
    inverse = np.linalg.pinv(weights[:, None] * whole.dense(), rcond=1e-11)
    balanced, scaled = whole.balance(values)
    expected = inverse @ (weights * values)
    assert_solves(balanced, balanced.solve(scaled).x, expected, scaled)


@large()
def test_small_gradients_correct_the_errors_of_z_in_balance():
    """W is square and poorly conditioned; z is off by 1e-5 of itself, gradients by rounding."""
    whole = system(ConvShape(8, 8, (3, 3), (1, 1), (1, 1), (6, 6)), 4, 1e-4)
    generator = np.random.default_rng(5)
    truth = generator.standard_normal(whole.shape[1])
    values = whole.apply(truth).astype(np.float32).astype(np.float64)
    values[: whole.split] *= 1.0 + 1e-5 * generator.standard_normal(whole.split)
    balanced, scaled = whole.balance(values)
    plain = np.linalg.norm(whole.solve(values).x - truth)
    assert np.linalg.norm(balanced.solve(scaled).x - truth) < 0.1 * plain


@pytest.mark.parametrize("size", [nullcontext, large])
@given(MANY, SEEDS, st.booleans(), st.sampled_from([1.0, 1e-4]))
@example(ConvShape(2, 3, (1, 4), (1, 1), (1, 1), (4, 2)), 126, False, 1.0)
@settings(max_examples=80)
def test_rank_matches_singular_values_and_the_structural_rank(size, shape, seed, masked, scale):
    with size():
        whole = system(shape, seed, scale, masked)
        values = np.linalg.svd(whole.balanced().dense(), compute_uv=False)
        assert whole.rank == int(np.sum(values > 1e-10 * values[0]))
    found = structural_rank(shape)
    assert whole.rank <= found.bound
    assert whole.rank == found.bound or masked or not found.exact


@pytest.mark.parametrize(("path", "shape"), [("column", COLUMN), ("row", ROW), ("dense", DENSE)])
def test_paths_and_condition_numbers(path, shape):
    whole = system(shape, 3)
    assert whole.path == path
    values = np.linalg.svd(whole.dense(), compute_uv=False)
    assert whole.condition() == pytest.approx(values[0] / values[whole.rank - 1], rel=1e-2)
    found = whole.solve(whole.apply(np.ones(whole.shape[1])))
    assert path == "column" or (found.iterations, found.stop) == (0, "direct")


@large()
def test_paths_and_ranks_of_large_systems():
    assert [system(shape).path for shape in (GRAM, BLOCKS, DEFICIENT)] == ["gram", "blocks", "gram"]
    assert system(BLOCKS, scale=1e-3).path == "gram"
    assert system(DEFICIENT).rank < DEFICIENT.unknowns
    assert system(BLOCKS, scale=1e-3).rank == BLOCKS.unknowns
    # CNN6-d's second layer: 3188 of 3468, where the sizes alone would allow 3380.
    assert system(ConvShape(12, 20, (3, 3), (2, 2), (1, 1), (17, 17)), 0, 1e-3).rank == 3188


@pytest.mark.parametrize("shape", [GRAM, BLOCKS, DEFICIENT])
@large()
def test_condition_number_with_padding_known_and_unknown(shape):
    whole = system(shape, 6, 0.1)
    for padding, dense in (("known", whole.dense()), ("unknowns", padded_oracle(whole))):
        values = singular_values(dense)
        assert whole.condition(padding) == pytest.approx(values[0] / values[-1], rel=1e-2)


def test_condition_number_of_a_large_system_by_lanczos(monkeypatch):
    whole = system(ConvShape(2, 6, (3, 3), (1, 1), (0, 0), (10, 10)), 5)
    exact = whole.condition()
    monkeypatch.setattr(module, "DENSE_LIMIT", 10)
    assert whole.condition() == pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0, 1e4, 1e7])
def test_condition_number_where_the_gradient_outweighs_the_weights(scale, monkeypatch):
    """On path `column`, where conjugate gradients no longer end, too."""
    whole = system(OUTWEIGHED, 0, scale)
    assert whole.path == "column"
    values = np.linalg.svd(whole.dense(), compute_uv=False)
    # Lanczos, and block inverse iteration, end at 1e-3 of each eigenvalue; power steps at 1 %.
    assert whole.condition() == pytest.approx(values[0] / values[-1], rel=1e-2)
    if scale == 1e7:
        monkeypatch.setattr(module, "DENSE_CONDITION", 100)
        with pytest.raises(NumericsError, match="outweighs the weights so far"):
            whole.condition()


def test_a_layer_that_sees_padding_only_has_no_condition_number():
    whole = system(ConvShape(1, 1, (1, 1), (4, 4), (1, 1), (2, 2)))
    assert whole.rank == 0
    with pytest.raises(NumericsError, match="U is 0"):
        whole.condition()
    values = np.linalg.svd(whole._with_padding().dense(), compute_uv=False)
    # 12 padded pixels have a unit row each; the 4 others no window meets.
    assert whole.condition("unknowns") == pytest.approx(values[0] / values[11], rel=1e-9)


@large()
def test_conjugate_gradients_that_do_not_end_are_replaced(monkeypatch):
    whole = system(BLOCKS, 7)
    values = np.random.default_rng(8).standard_normal(whole.shape[0])
    expected = np.linalg.lstsq(whole.dense(), values, rcond=None)[0]
    whole.solve(values)
    unended = np.full(whole.shape[1], np.nan), 1, "iteration limit"
    monkeypatch.setattr(gram, "refined_solve", lambda *_: unended)
    np.testing.assert_allclose(whole.solve(values).x, expected, atol=1e-9)


def test_a_matrix_that_is_not_quite_semidefinite_gets_more_damping():
    matrix = np.diag([1.0, 0.5, -1e-10])
    matrix[0, 1] = matrix[1, 0] = 0.1
    original = matrix.copy()
    factor = gram.NormalFactor(matrix)
    assert factor.damping > 1e-10 and factor.suspects == 1
    damped, rhs = original + factor.damping * np.eye(3), np.array([1.0, 2.0, 0.0])
    np.testing.assert_allclose(factor.solve(rhs), np.linalg.solve(damped, rhs), rtol=1e-9)


def test_a_null_space_that_leaves_no_small_pivot_is_noticed():
    # In Cholesky's order a null vector appears at its last entry that is not small.
    null = 10.0 ** -np.arange(0.0, 30.0, 1.5)
    null /= np.linalg.norm(null)
    kept = np.eye(null.size) - np.outer(null, null)
    factor = gram.NormalFactor(kept.copy())
    pivots = factor._factor.diagonal() ** 2
    assert pivots.min() > 1e6 * factor.damping and factor.suspects == 1
    assert gram.NormalFactor(kept + 1e-3 * np.outer(null, null)).suspects == 0


def test_projection_is_onto_the_range_of_w_of_full_column_rank():
    convolution = Convolution(parts(COLUMN)[0], COLUMN)
    dense = convolution.dense()
    y = np.random.default_rng(1).standard_normal(dense.shape[0])
    expected = dense @ np.linalg.lstsq(dense, y, rcond=None)[0]
    np.testing.assert_allclose(convolution.project(y), expected, atol=1e-10)


def test_what_cannot_be_solved_is_refused(monkeypatch):
    whole, pinned = system(GRAM), system(GRAM, pinned=True)
    both, (weight, delta, _) = (whole.convolution, whole.gradient), parts(GRAM)
    small = system(ConvShape(1, 2, (2, 2), (1, 1), (0, 0), (4, 4)))
    monkeypatch.setattr(module, "DENSE_BYTES", 1000)
    monkeypatch.setattr(limits, "MATRIX_BYTES", 8 * 16 * 16)
    assert gram.normal_matrix(small.convolution, small.gradient).shape == (16, 16)
    monkeypatch.setattr(limits, "MATRIX_BYTES", 8 * 16 * 16 - 1)
    calls = [
        (lambda: LayerSystem(*both, np.ones(3, dtype=bool)), "mask 'keep' must be"),
        (lambda: LayerSystem(*both, None, np.ones(whole.shape[1])), "mask 'pinned' must be"),
        (lambda: whole.condition("some"), "padding is 'some'"),
        (lambda: pinned.condition("unknowns"), "Padded pixels"),
        (lambda: Convolution(parts(ROW)[0], ROW).project(np.zeros(32)), "full column rank"),
        (lambda: system(DENSE).rank, "too large"),
        (lambda: gram.normal_matrix(small.convolution, small.gradient), "needs a matrix of"),
    ]
    for kind, value in ((Convolution, weight), (GradientConstraint, delta)):
        calls.append((lambda kind=kind, value=value: kind(value[:1], GRAM), "does not fit"))
        for bad in (np.nan * value, np.inf * value):
            calls.append((lambda kind=kind, bad=bad: kind(bad, GRAM), "NaN"))
    for call, words in calls:
        with pytest.raises(NumericsError, match=words):
            call()


def test_svd_falls_back_where_divide_and_conquer_gives_up(monkeypatch):
    original = gram.linalg.svd

    def stubborn(matrix, **options):
        if options.get("lapack_driver") != "gesvd":
            raise np.linalg.LinAlgError("SVD did not converge")
        return original(matrix, **options)

    monkeypatch.setattr(gram.linalg, "svd", stubborn)
    matrix = np.random.default_rng(0).standard_normal((7, 4))
    left, values, right = gram.thin_svd(matrix)
    np.testing.assert_allclose(left * values @ right, matrix, atol=1e-12)


def test_the_condition_of_a_tiny_matrix():
    matrix = sparse.csr_matrix(np.diag([2.0, 10.0]))
    largest, smallest = BandCholesky(matrix, np.arange(2)).extremes()
    assert largest / smallest == pytest.approx(5.0)


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
    none = [_boxes_after(0, 2, step), _boxes_before(0, 0, step), _boxes_before(0, 2, step)]
    assert none == [0, 0, 1]
