"""The factor of large images' W^T W, and the paths that take it."""

import re

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.linalg import LinAlgError
from torch import nn

import gradleak
from chains import chain, conv, conv_shapes, parts, system
from gradleak.attacks.closed_form.copa import Copa
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.errors import NumericsError
from gradleak.operators import convolution as convolution_module
from gradleak.operators import grid_factor, limits
from gradleak.operators import system as module
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.grid_factor import Dissection, GridFactor
from gradleak.operators.shape import ConvShape

SHAPES, SEEDS = conv_shapes(most_filters=8), st.integers(0, 1000)
WIDE = ConvShape(2, 9, (3, 2), (2, 1), (1, 0), (9, 8))
TALL = ConvShape(2, 24, (3, 3), (1, 1), (1, 1), (14, 14))
EPS = np.finfo(float).eps


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch):
    monkeypatch.setattr(grid_factor, "LEAF", 1)
    monkeypatch.setattr(grid_factor, "STRIPE", 3)


@given(SHAPES, SEEDS)
@example(WIDE, 0)
@example(TALL, 0)
def test_it_solves_what_the_dense_matrix_does(shape, seed):
    assume(shape.covered == shape.unknowns)
    weight, _, generator = parts(shape, seed)
    matrix = Convolution(weight, shape).dense()
    damped = matrix.T @ matrix + 0.1 * np.eye(shape.unknowns)
    values = generator.standard_normal((shape.unknowns, 2))
    factor = GridFactor(weight, Dissection(shape), 0.1)
    found = factor.solve(values)
    # A backward error of n·eps (Higham 2002, Theorem 10.4) times the condition number.
    limit = 10 * shape.unknowns * EPS * np.linalg.cond(damped)
    expected = np.linalg.solve(damped, values)
    np.testing.assert_allclose(found, expected, atol=limit * np.abs(expected).max(), rtol=0)
    np.testing.assert_allclose(factor.solve(values[:, 0]), found[:, 0], rtol=1e-9, atol=1e-9)


@given(SHAPES)
@example(WIDE)
def test_every_pixel_is_eliminated_once(shape):
    assume(shape.covered == shape.unknowns)
    height, width = shape.size
    times = np.zeros((height, width), dtype=int)
    for front in Dissection(shape).fronts.values():
        for place in front.places:
            times[tuple((front.own + place).T)] += 1
    assert (times == 1).all()


def test_equal_parts_are_factored_once_and_the_cost_is_known_before(monkeypatch):
    monkeypatch.setattr(grid_factor, "LEAF", 30)
    few, many = (
        Dissection(ConvShape(2, 9, (3, 3), (1, 1), (1, 1), (side, side))) for side in (16, 64)
    )
    # Twice the side adds two levels of at most 9 kinds: inside, at each side, in each corner.
    assert len(many.fronts) <= len(few.fronts) + 36
    places = [sum(len(front.places) for front in one.fronts.values()) for one in (few, many)]
    assert places[1] > 14 * places[0]
    weight, _, _ = parts(few.shape)
    factor = GridFactor(weight, few)
    assert 0 < factor.bytes <= 8 * few.cost.numbers
    own = [(2 * len(f.own), 2 * len(f.border), len(f.places)) for f in few.fronts.values()]
    assert few.cost.solve == sum(4 * places * a * (a + b) for a, b, places in own)
    assert few.cost.operations >= sum(a**3 / 3 for a, _, _ in own)
    # A matrix of n unknowns takes n² numbers; of this factor they grow as the side's square.
    assert many.cost.numbers < 30 * few.cost.numbers


def test_it_refuses_a_matrix_that_is_not_positive_definite():
    with pytest.raises(LinAlgError, match=r"pivot \d+ of \d+ is not positive"):
        GridFactor(np.zeros((9, 2, 3, 2)), Dissection(WIDE))


@given(SHAPES, SEEDS)
@example(WIDE, 0)
def test_a_convolution_is_applied_without_its_matrix(shape, seed):
    weight, _, generator = parts(shape, seed)
    own = Convolution(weight, shape)
    x, y = (generator.standard_normal(side) for side in own.shape[::-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_module, "MOST_ENTRIES", -1)
        found = own.apply(x), own.adjoint(y)
    # Sums of that many products.
    limit = 10 * max(own.shape) * EPS * np.abs(weight).max()
    np.testing.assert_allclose(found[0], own.matrix @ x, atol=limit * np.abs(x).max())
    np.testing.assert_allclose(found[1], own.transposed @ y, atol=limit * np.abs(y).max())


@pytest.fixture
def beyond(monkeypatch):
    """Layers for which no dense matrix and no banded factor is taken."""
    monkeypatch.setattr(module, "DENSE_LIMIT", 0)
    monkeypatch.setattr(limits, "MOST_DENSE", 10)
    monkeypatch.setattr(module, "QUICK", 0)
    monkeypatch.setattr(limits, "MATRIX_BYTES", 8 * 10**2)
    monkeypatch.setattr(limits, "FACTOR_WORK", -1)


def test_a_large_layer_is_solved_and_has_rank_and_condition(beyond, monkeypatch):
    whole = system(TALL, 3, 0.1)
    assert whole.path == "column" and isinstance(whole.convolution.factor, GridFactor)
    values = np.linalg.svd(whole.dense(), compute_uv=False)
    assert whole.rank == TALL.unknowns
    assert whole.condition() == pytest.approx(values[0] / values[-1], rel=1e-2)
    x = np.random.default_rng(0).standard_normal(TALL.unknowns)
    noise = np.random.default_rng(1).standard_normal(whole.shape[0])
    found = whole.solve(whole.apply(x) + noise)
    exact = np.linalg.lstsq(whole.dense(), whole.apply(x) + noise, rcond=None)[0]
    limit = whole.shape[0] * EPS * (values[0] / values[-1]) ** 2 * np.linalg.norm(exact)
    assert found.stop == "converged" and np.linalg.norm(found.x - exact) <= limit
    assert found.residual == pytest.approx(
        np.linalg.norm(whole.apply(exact) - whole.apply(x) - noise)
    )
    assert found.estimate.path == "column"
    assert found.estimate.operations == whole.convolution.dissection.cost.operations
    assert found.estimate.bytes >= whole.convolution.factor.bytes
    whole.convolution.release()
    assert "factor" in vars(whole.convolution)
    monkeypatch.setattr(convolution_module, "KEPT_BYTES", 0)
    whole.convolution.release()
    assert "factor" not in vars(whole.convolution)
    y = np.random.default_rng(2).standard_normal(whole.convolution.shape[0])
    once = whole.convolution.project(y)
    np.testing.assert_allclose(whole.convolution.project(once), once, atol=1e-9)


def test_a_singular_filter_bank_is_damped_and_its_rank_refused(beyond):
    weight, _, _ = parts(TALL, 4)
    weight[:, 1] = weight[:, 0]  # both channels alike: W sees their sum alone
    whole = module.LayerSystem(Convolution(weight, TALL), system(TALL, 4).gradient)
    assert whole.path == "damped"
    x = np.random.default_rng(0).standard_normal(TALL.unknowns)
    found = whole.solve(whole.apply(x))
    # Conjugate gradients come as near as they can, and say so.
    assert found.residual <= 1e-2 * np.linalg.norm(whole.apply(x))
    assert found.residual == np.linalg.norm(whole.apply(found.x) - whole.apply(x))
    assert found.stop == "iteration limit"
    assert found.estimate.path == "damped" and found.estimate.bytes >= whole._damped.bytes
    with pytest.raises(NumericsError, match="392 unknowns needs a matrix"):
        assert whole.rank


def test_where_a_dense_matrix_fits_operations_decide(beyond, monkeypatch):
    monkeypatch.setattr(limits, "MOST_DENSE", 10**6)
    monkeypatch.setattr(module, "FASTER", 0)
    assert system(TALL, 3, 1e-3).path == "column"
    monkeypatch.setattr(module, "CG_STEPS", 1e9)
    assert system(TALL, 3, 1e-3).path == "gram"
    monkeypatch.setattr(module, "FASTER", 1e9)
    assert system(TALL, 3, 1e-3).path == "gram"


def test_rgap_reads_an_image_beyond_the_dense_matrix(beyond):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 20, 3, 1, 1)
    model = nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(20 * 12 * 12, 1))
    y, x = np.mgrid[:24, :24] / 23.0
    picture = torch.from_numpy(np.stack([x, y, (x + y) / 2])[None]).float()
    gradient = gradleak.capture(model, picture, [1], loss="logistic")
    settings = {"labels": [1], "loss": "logistic"}
    found = gradleak.invert(gradient, model, (3, 24, 24), "rgap", **settings)
    assert float((found.images - picture).square().mean()) < 1e-8  # 80 dB


def test_a_filter_whose_slope_was_taken_for_another_loses_its_weight(beyond):
    _, delta, generator = parts(TALL, 5)
    true, off = system(TALL, 5), delta.copy()
    off[3, 7, 7] *= 5.0  # as where a LeakyReLU's value near 0 has the wrong sign
    x = generator.standard_normal(TALL.unknowns)
    z, gradient = true.convolution.apply(x), true.gradient.apply(x)
    noise = 1e-7 * np.abs(z).mean()
    values = np.concatenate([z + noise * generator.standard_normal(z.size), gradient])
    seen = module.LayerSystem(true.convolution, GradientConstraint(off, TALL))
    errors = {}
    for name, whole, right in (
        ("weighed", *seen.balance(values)),
        ("balanced", seen.balanced(), values),
    ):
        if name == "balanced":
            rows = values[seen.split :].reshape(TALL.filters, -1)
            rows = (rows * seen._filter_factors(1.0)[:, None]).ravel()
            right = np.concatenate([values[: seen.split], rows])
        errors[name] = np.linalg.norm(whole.solve(right).x - x) / np.linalg.norm(x)
    singular = np.linalg.svd(true.convolution.dense(), compute_uv=False)
    # No row is trusted beyond what W's own equations say: their noise, amplified, is the bound.
    assert errors["weighed"] <= 1e-7 * 2 * singular[0] / singular[-1] < errors["balanced"]


@pytest.mark.parametrize(
    ("shape", "masked", "words"),
    [
        (ConvShape(3, 12, (4, 4), (2, 2), (1, 1), (224, 224)), False, ""),
        (ConvShape(3, 64, (3, 3), (1, 1), (1, 1), (87, 87)), True, ""),
        (ConvShape(64, 64, (7, 7), (1, 1), (3, 3), (56, 56)), True, ""),  # K has 3,136 rows each
        (
            ConvShape(3, 12, (4, 4), (2, 2), (1, 1), (224, 224)),
            True,
            "150528 unknowns, whose dense matrix takes 169 GiB, .* ReLU hides rows .* LeakyReLU",
        ),
        (ConvShape(3, 11, (4, 4), (2, 2), (1, 1), (224, 224)), False, "fewer outputs; use more"),
        (ConvShape(3, 30, (2, 2), (3, 3), (0, 0), (224, 224)), False, "do not meet all pixels"),
        (
            ConvShape(96, 96, (3, 3), (1, 1), (1, 1), (112, 112)),
            False,
            r"a sparse factor takes \d+\.\d GiB; use fewer channels, or a smaller input \(",
        ),
    ],
)
def test_what_is_too_large_is_refused_from_sizes(shape, masked, words):
    found = limits.too_large(shape, masked)
    assert re.search(words, found) if words else not found


@pytest.mark.parametrize("attack", [RGap(), Copa(start="rgap")])
def test_attacks_refuse_a_layer_before_anything_is_solved(attack):
    shape = {"kernel": 3, "padding": 1, "activation": "leaky_relu"}
    network = chain(conv(4, **shape), conv(3, **shape), side=224, channels=3)
    assert "small: conv2 has 200704 unknowns" in (attack.applies(network) or "")
    assert attack.applies(chain(conv(4, **shape), side=224, channels=3)) is None
    # COPA minimises without a matrix in all layers but the first.
    assert Copa().applies(network) is None
