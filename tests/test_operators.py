"""Every operator: the dot-test, a dense oracle by PyTorch's own convolution, and small parts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from chains import conv_shapes, parts, system
from gradleak.errors import NumericsError
from gradleak.operators import gram
from gradleak.operators import system as module
from gradleak.operators.convolution import BandCholesky, Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import _boxes_after, _boxes_before, structural_rank

COLUMN = ConvShape(2, 6, (3, 3), (1, 1), (0, 0), (8, 8))
ROW = ConvShape(4, 2, (3, 3), (2, 2), (0, 0), (9, 9))
# A corner output meets one pixel of each of 2 channels, but has 4 filters.
DENSE = ConvShape(2, 4, (2, 2), (2, 2), (1, 1), (8, 8))
OUTWEIGHED = ConvShape(6, 16, (3, 3), (2, 1), (2, 2), (15, 7))


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


def balanced_system(shape, seed, scale):
    """A system of small gradients, and its dense matrix without their scale."""
    whole = system(shape, seed, scale)
    dense = whole.dense()
    dense[whole.split :] /= scale
    return whole, dense


@given(conv_shapes(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_operators_match_autograd_and_their_adjoints(shape, seed):
    weight, delta, _ = parts(shape, seed)
    whole = system(shape, seed)
    truth = dense_by_torch(shape, weight, delta)
    rows = whole.split
    for operator, dense in (
        (whole, truth),
        (whole.convolution, truth[:rows]),
        (whole.gradient, truth[rows:]),
    ):
        assert operator.shape == dense.shape
        np.testing.assert_allclose(operator.dense(), dense, atol=1e-12)
        generator = np.random.default_rng(seed)
        u, v = (generator.standard_normal(n) for n in (dense.shape[1], dense.shape[0]))
        np.testing.assert_allclose(operator.apply(u), dense @ u, atol=1e-11)
        np.testing.assert_allclose(operator.adjoint(v), dense.T @ v, atol=1e-11)
        assert operator.apply(u) @ v == pytest.approx(u @ operator.adjoint(v), rel=1e-9, abs=1e-9)


@given(conv_shapes(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_solve_is_the_minimum_norm_least_squares_solution(shape, seed):
    whole = system(shape, seed)
    generator = np.random.default_rng(seed + 1)
    values = generator.standard_normal(whole.shape[0])
    start = generator.standard_normal(whole.shape[1])
    inverse = np.linalg.pinv(whole.dense(), rcond=1e-11)
    np.testing.assert_allclose(whole.solve(values).x, inverse @ values, rtol=1e-5, atol=1e-6)
    moved = start + inverse @ (values - whole.apply(start))
    np.testing.assert_allclose(whole.solve(values, start).x, moved, rtol=1e-5, atol=1e-6)


@given(conv_shapes(), st.integers(0, 1000), st.sampled_from([1e-4, 1e-8]))
@settings(max_examples=40, deadline=None)
def test_solve_keeps_what_small_gradients_tell(shape, seed, scale):
    """Gradients are often orders of magnitude below the weights; on consistent data all counts."""
    whole, balanced = balanced_system(shape, seed, scale)
    truth = np.random.default_rng(seed).standard_normal(whole.shape[1])
    expected = np.linalg.pinv(balanced, rcond=1e-11) @ (balanced @ truth)
    found = whole.solve(whole.apply(truth)).x
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@given(conv_shapes(), st.integers(0, 1000), st.sampled_from([1.0, 1e-4]))
@settings(max_examples=80, deadline=None)
def test_rank_matches_singular_values_and_the_structural_rank(shape, seed, scale):
    whole, balanced = balanced_system(shape, seed, scale)
    values = np.linalg.svd(balanced, compute_uv=False)
    assert whole.rank == int(np.sum(values > 1e-10 * values[0]))
    found = structural_rank(shape)
    assert whole.rank <= found.bound
    if found.exact:
        assert whole.rank == found.bound


@pytest.mark.parametrize(("path", "shape"), [("column", COLUMN), ("row", ROW), ("dense", DENSE)])
def test_paths_and_condition_numbers(path, shape):
    whole = system(shape, 3)
    assert whole.path == path
    values = np.linalg.svd(whole.dense(), compute_uv=False)
    assert whole.condition() == pytest.approx(values[0] / values[whole.rank - 1], rel=1e-2)
    found = whole.solve(whole.apply(np.ones(whole.shape[1])))
    assert path == "column" or (found.iterations, found.stop) == (0, "direct")


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


def test_projection_is_onto_the_range_of_w_of_full_column_rank():
    convolution = Convolution(parts(COLUMN)[0], COLUMN)
    dense = convolution.dense()
    y = np.random.default_rng(1).standard_normal(dense.shape[0])
    expected = dense @ np.linalg.lstsq(dense, y, rcond=None)[0]
    np.testing.assert_allclose(convolution.project(y), expected, atol=1e-10)
    with pytest.raises(NumericsError, match="full column rank"):
        Convolution(parts(ROW)[0], ROW).project(np.zeros(32))


def test_bad_weights_and_deltas_are_refused():
    shape = ConvShape(1, 2, (3, 3), (1, 1), (0, 0), (5, 5))
    weight, delta, _ = parts(shape)
    for kind, value in ((Convolution, weight), (GradientConstraint, delta)):
        with pytest.raises(NumericsError, match="does not fit"):
            kind(value[:1], shape)
        for bad in (np.nan, np.inf):
            with pytest.raises(NumericsError, match="NaN"):
                kind(value * bad, shape)


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
    assert BandCholesky(matrix, np.arange(2)).condition() == pytest.approx(5.0)


def test_matrices_beyond_memory_are_refused(monkeypatch):
    monkeypatch.setattr(module, "DENSE_BYTES", 1000)
    with pytest.raises(NumericsError, match="too large"):
        _ = system(DENSE).rank
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
    none = [_boxes_after(0, 2, step), _boxes_before(0, 0, step), _boxes_before(0, 2, step)]
    assert none == [0, 0, 1]
