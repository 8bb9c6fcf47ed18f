"""Small parts of attacks and their inversions, each against its definition."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from chains import fully_connected, image, seen, view
from gradleak.attacks.closed_form.fully_connected import beginnings
from gradleak.attacks.closed_form.least_squares import LayerProblem, adam, square_sum
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.attacks.label_inference import is_positive
from gradleak.attacks.mkor.attack import Mkor
from gradleak.attacks.mkor.free_direction import settle
from gradleak.attacks.mkor.pixels import Axis, Regions, estimate
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.errors import NumericsError
from gradleak.models.activations import Activation
from gradleak.operators.convolution import Convolution
from gradleak.operators.shape import ConvShape
from mkor_cases import PAIRED, batch, error, network
from mkor_cases import seen as seen_by_server


def test_adam_is_pytorchs():
    shape = ConvShape(1, 2, (2, 2), (1, 1), (0, 0), (3, 3))
    draw = np.random.default_rng(0)
    operator = Convolution(draw.standard_normal((2, 1, 2, 2)), shape)
    problem = LayerProblem(operator, draw.standard_normal(8), Activation("tanh"))
    start = draw.standard_normal(9)
    found = adam(problem, start, 250)
    y = torch.tensor(start, requires_grad=True)
    weight, values = torch.tensor(operator.dense()), torch.tensor(problem.values)
    search = torch.optim.Adam([y], lr=1e-2, eps=1e-8)
    losses = []
    for _ in range(251):
        search.zero_grad()
        loss = (weight @ torch.tanh(y) - values).square().sum()
        loss.backward()
        losses.append(loss.item())
        if len(losses) <= 250:
            search.step()
    np.testing.assert_allclose(found.y, y.detach().numpy(), rtol=1e-8)
    # The value at the start, after each hundred steps and at the end; no penalty adds nothing.
    np.testing.assert_allclose(found.trace, [losses[k] for k in (0, 100, 200, 250)], rtol=1e-8)
    assert square_sum(problem.residuals(start)) == pytest.approx(losses[0])


def test_an_input_that_may_be_negative_is_not_positive():
    """A mean of 0.5 moves the range below 0; from 0 on it is positive."""
    single = fully_connected()
    given = view(single, image(single, low=0.0), loss="logistic", low=0.0)
    assert is_positive(given)
    assert not is_positive(replace(given, low=-0.5))


@pytest.mark.parametrize("seed", range(4))
def test_a_granted_label_is_held_against_the_last_bias(seed):
    given, _, label = seen(fully_connected(8, 6, bias=True), seed=seed)
    search, bent = InvertingGradients(iterations=1), replace(given, labels=(-label,))
    right, wrong = (search.run_many([one], [0])[0] for one in (given, bent))
    assert not isinstance(right, NumericsError)
    assert isinstance(wrong, NumericsError)


def test_the_margin_is_held_against_the_last_bias():
    given, _, _ = seen(fully_connected(8, bias=True))
    (one,) = beginnings(given, given.weights, given.gradients)
    assert one.note == ""
    # The same ∂ℓ/∂w and ∂ℓ/∂b, but another b gives another μ.
    bent = given.weights | {"fc2.bias": given.weights["fc2.bias"] + 1.0}
    (one,) = beginnings(given, bent, given.gradients)
    assert "differ" in one.note


def test_every_beginning_of_an_odd_network_is_answered():
    """No bias and the identity: x, −x and their twins all give the same gradient."""
    network = fully_connected(8, activation="identity")
    given, _, _ = seen(network, low=-0.5, side="same", granted=False)
    found = RGap().run(given, 0)
    assert len(beginnings(given, given.weights, given.gradients)) == 1 + len(found.others) == 4


# --- MKOR ----------------------------------------------------------------------------------------


def test_an_original_size_divides_square_images():
    assert Mkor(native=4).applies(network(side=16)) is None
    for native, size in ((5, (1, 16, 16)), (4, (1, 16, 8)), (4, (1, 8, 16))):
        assert "native" in Mkor(native=native).applies(replace(network(side=16), input=size))


def test_paths_are_solved_again_at_the_features_found():
    """Cross-entropy sends back what depends on the image: so δ of a gray one is a beginning."""
    labels = [2, 0, 0, 2, 2, 3]
    images = 0.02 * batch(network(), labels)
    given = seen_by_server(network(), PAIRED.model_copy(update={"beta": 1.0}), images, labels)
    found = (Mkor(native=4, refinements=n).run(given, 0) for n in (0, 1))
    before, after = (max(error(one, images, labels).values()) for one in found)
    assert after < 0.1 * before


@pytest.mark.parametrize("axis", [1, 2])
def test_an_edge_between_rows_or_columns_settles_the_direction(axis):
    """Flat images, so that all differences between neighbours are of s."""
    ramp = np.linspace(0.0, 0.5, 6)
    s = np.broadcast_to(ramp[:, None] if axis == 1 else ramp, (1, 6, 6))
    values = np.r_[0.0, 1.0, np.random.default_rng(0).uniform(0, 1, 9)]
    found = settle(values[:, None, None, None] - s, np.ones(11), "median")
    np.testing.assert_allclose(found, s, atol=1e-6)


@pytest.mark.parametrize("regions", [(1, 1), (1, 3), (3, 1)])
def test_a_row_of_regions_has_no_neighbours_on_one_side(regions):
    s = 0.5 * np.arange(float(np.prod(regions))).reshape(1, *regions) / max(regions)
    flat = np.linspace(0.1, 0.9, 11)[:, None, None, None]
    found = settle(flat - s, np.ones(11), "median")
    np.testing.assert_allclose(found, s, atol=1e-6)


def test_unknown_blocks_lie_between_known_ones():
    axis = Axis(np.arange(6), 1, 6, 6)
    known = np.array([False, True, False, False, True, False])
    cells = np.array([np.nan, 1.0, np.nan, np.nan, 4.0, np.nan])
    spread = axis.spread(known) @ np.nan_to_num(cells)
    np.testing.assert_allclose(spread, [1, 1, 2, 3, 4, 4])


def test_least_squares_leaves_out_rows_and_columns_that_were_pruned():
    starts = np.arange(0, 8, 2), np.arange(0, 12, 2)
    ramp = np.add.outer(np.linspace(0, 0.4, 8), np.linspace(0, 0.6, 12))
    means = ramp.reshape(4, 2, 6, 2).mean(axis=(1, 3))[None, None]
    means[:, :, :, 4] = np.nan
    found = estimate(Regions(means, means, starts, 2), (8, 12), "least_squares", None, 0.0)
    assert found.shape == (1, 1, 8, 12)
    np.testing.assert_allclose(found[0, 0, 1:-1, 1:-1], ramp[1:-1, 1:-1], atol=0.05)
