"""Losses of one output: derivatives, and the margins that a gradient gives away."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.client.capture import mean_loss
from gradleak.errors import ConfigError, NumericsError
from gradleak.models.losses import BINARY, MarginLoss, output_gradient


@pytest.mark.parametrize("name", BINARY)
def test_value_and_derivative_are_those_of_pytorch(name):
    loss = MarginLoss(name)
    for mu in (-3.0, -0.2, 0.3, 0.9, 2.5):
        output = torch.tensor([[mu]], dtype=torch.float64, requires_grad=True)
        value = mean_loss(name, output, torch.tensor([1]))
        (slope,) = torch.autograd.grad(value, output)
        assert float(loss.value(np.float64(mu))) == pytest.approx(value.item(), abs=1e-14)
        assert float(loss.derivative(mu)) == pytest.approx(slope.item(), abs=1e-14)


@pytest.mark.parametrize("name", ["cross_entropy", *BINARY])
def test_output_gradient_is_that_of_pytorch(name):
    labels = (0, 2) if name == "cross_entropy" else (-1, 1)
    for label in labels:
        values = np.array([0.3, -1.2, 0.7]) if name == "cross_entropy" else np.array([0.4])
        output = torch.tensor(values[None], requires_grad=True)
        (slope,) = torch.autograd.grad(mean_loss(name, output, torch.tensor([label])), output)
        np.testing.assert_allclose(output_gradient(name, values, label), slope[0], atol=1e-14)


@pytest.mark.parametrize("name", BINARY)
@given(mu=st.floats(-20, 20).filter(lambda mu: abs(mu) > 1e-6))
def test_the_margin_is_among_its_roots(name, mu):
    loss = MarginLoss(name)
    product = float(loss.product(mu))
    if product == 0:
        with pytest.raises(NumericsError, match="zero gradient"):
            loss.margins(product)
        return
    found = loss.margins(product)
    # Near the turn both roots meet, and a root is only as sharp as the square root of rounding.
    assert min(abs(root - mu) for root in found) < 1e-9 * abs(mu) + 1e-7
    assert all(float(loss.product(root)) == pytest.approx(product, rel=1e-9) for root in found)
    assert list(found) == sorted(found)
    assert len(found) == (1 if mu < 0 or name == "hinge" else 2) or abs(mu - loss.turn) < 1e-6


def test_the_turn_is_the_least_product():
    for name, turn in (("logistic", 1.2784645427610738), ("exponential", 1.0)):
        loss = MarginLoss(name)
        assert loss.turn == pytest.approx(turn)
        grid = np.linspace(-5, 30, 70_001)
        assert grid[np.argmin(loss.product(grid))] == pytest.approx(turn, abs=1e-3)
        assert loss.margins(float(loss.product(loss.turn)) * (1 + 1e-9)) == (loss.turn,)


@pytest.mark.parametrize(
    ("product", "words"),
    [(0.0, "zero gradient"), (np.nan, "cannot be told"), (-5.0, "contradicts the gradient")],
)
@pytest.mark.parametrize("name", BINARY)
def test_impossible_products_are_refused(name, product, words):
    with pytest.raises(NumericsError, match=words):
        MarginLoss(name).margins(product)


def test_a_loss_that_is_not_known_is_not_taken_for_another():
    with pytest.raises(ConfigError, match=r"loss: mse is not known; .* hinge\.$"):
        mean_loss("mse", torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))
