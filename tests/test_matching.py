"""Gradients of many members at once, against autograd through the ordinary module."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chains import conv, net, reference
from conftest import refused
from gradleak.attacks.optimization.engine import im2col
from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients, stack
from gradleak.attacks.optimization.engine.distances import Cosine, Squared
from gradleak.attacks.optimization.engine.jacobian import descend
from gradleak.client.capture import mean_loss
from gradleak.errors import ConfigError, NumericsError
from gradleak.models.activations import Activation
from gradleak.models.chain import ConvSpec, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.models.losses import BINARY, LOSSES, OF_CLASSES, MarginLoss, output_gradient

MEMBERS, BATCH = 3, 2
CLASSES, SLOPED = "cross_entropy", ("sigmoid", "leaky_relu", "relu")


def network(loss="cross_entropy", activation="tanh", bias=True, pool="none", skip=True):
    act, skips = Activation(activation, 0.2), (int(skip), 2 * (skip and pool == "none"))
    outputs = 4 if loss in OF_CLASSES else 1
    mode = "replicate" if pool == "max" else "zeros"
    return net(
        ConvSpec(3, (3, 2), (2, 1), (1, 1), bias, act, padding_mode=mode),
        ConvSpec(3, (3, 3), (1, 1), (1, 1), bias, act, skip=skips[0], pool=pool, padding_mode=mode),
        ConvSpec(3, (1, 3), (1, 1), (0, 1), False, act, skip=skips[1]),
        LinearSpec(5, bias, act),
        LinearSpec(outputs, bias, Activation("identity" if outputs == 1 else activation, 0.2)),
        size=(2, 7, 7),
    )


def drawn(chain):
    draw = np.random.default_rng(0)
    return torch.from_numpy(draw.standard_normal((MEMBERS, BATCH, *chain.input)))


def matching(network, images, labels, targets, scale=None):
    """Return Σ_l ||∂ℓ/∂W_l − target_l||² of each member (M,)."""
    pairs = zip(network(images, labels, scale), targets, strict=True)
    return sum((g - t).flatten(1).square().sum(1) for g, t in pairs)


def known(loss):
    labels = range(4) if loss in OF_CLASSES else (-1, 1)
    return torch.from_numpy(np.random.default_rng(1).choice(labels, (MEMBERS, BATCH)))


# Skips from the image itself.
FIRST = (conv(2, 3, 1, 1, bias=True, skip=skip) for skip in (1, 2))
CASES = [
    *[(network(loss), loss, granted) for loss in LOSSES for granted in (True, False)],
    *[(network(activation=name, bias=False), CLASSES, True) for name in SLOPED],
    (network(activation="identity"), CLASSES, False),
    (network(activation="sigmoid", pool="average"), CLASSES, True),
    (network(pool="max"), CLASSES, False),
    (network(activation="relu", bias=False, pool="max"), CLASSES, True),
    (net(*FIRST, LinearSpec(4), size=(2, 5, 5)), CLASSES, True),
]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("chain", "loss", "granted"), CASES)
def test_gradients_and_the_derivative_of_their_distance_equal_autograd(chain, loss, granted, own):
    sets = [initial_weights(chain, seed if own else 0) for seed in range(MEMBERS)]
    weights = stack(sets)
    assert weights["conv1.weight"].ndim == (5 if own else 4)
    images, labels = drawn(chain).requires_grad_(), known(loss)
    if not granted:
        logits = np.random.default_rng(2).standard_normal((MEMBERS, BATCH, chain.classes))
        labels = torch.from_numpy(logits).requires_grad_()
    gradients = ChainGradients(chain, weights, loss, dtype=torch.float64)
    found = gradients(images, labels)
    members = zip(sets, images, labels, strict=True)
    expected = [list(reference(chain, *member, loss)[0].values()) for member in members]
    for number, name in enumerate(gradients.names):
        assert found[number].shape[1:] == gradients.shapes[name]
        for m in range(MEMBERS):
            torch.testing.assert_close(found[number][m], expected[m][number])
    draw = torch.Generator().manual_seed(2)
    targets = [torch.randn(f.shape, dtype=f.dtype, generator=draw) for f in found]
    variables = [images] if granted else [images, labels]
    ours = matching(gradients, images, labels, targets)
    pairs = (zip(one, targets, strict=True) for one in expected)
    theirs = [sum(((a - b[m]) ** 2).sum() for a, b in each) for m, each in enumerate(pairs)]
    torch.testing.assert_close(ours, torch.stack(theirs))
    found = torch.autograd.grad(ours.sum(), variables)
    expected = torch.autograd.grad(sum(theirs), variables, allow_unused=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b)
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    scaled = matching(gradients, images, labels, targets, scale)
    value, *written = descend(gradients, images, labels, Squared(targets), scale)
    torch.testing.assert_close(value, scaled)
    for a, b in zip(written, torch.autograd.grad(scaled.sum(), variables), strict=not granted):
        torch.testing.assert_close(a, b)
    assert (written[1] is None) == granted


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pool", ["none", "average", "max"])
def test_many_images_of_a_member_are_summed_otherwise_than_few(pool, stride):
    side = 16 if stride == 2 else 10
    mode = "replicate" if pool == "max" else "zeros"
    chain = net(
        ConvSpec(3, (3, 2), (stride, stride), (1, 1), True, Activation("tanh")),
        ConvSpec(4, (3, 3), (1, 1), (1, 1), True, Activation("tanh"), pool=pool, padding_mode=mode),
        LinearSpec(5),
        size=(2, side, side + stride),
    )
    count = im2col.MANY + 1
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.standard_normal((2, count, *chain.input)))
    labels = torch.from_numpy(draw.integers(0, 5, (2, count)))
    gradients = ChainGradients(chain, initial_weights(chain, 0), CLASSES, dtype=torch.float64)
    targets = [torch.randn_like(g) for g in gradients(images, labels)]
    scale = torch.tensor([0.5, 2.0], dtype=torch.float64)
    for distance in (Squared(targets), Cosine(targets, [True] * len(targets))):
        found, slope, _ = descend(gradients, images, labels, distance, scale)
        x = images.clone().requires_grad_()
        parts = list(zip(gradients(x, labels, scale), targets, strict=True))
        expected = sum((g - t).flatten(1).square().sum(1) for g, t in parts)
        if isinstance(distance, Cosine):
            inner = sum((g * t).flatten(1).sum(1) for g, t in parts)
            expected = 1.0 - inner / sum(g.flatten(1).square().sum(1) for g, _ in parts).sqrt()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(slope, torch.autograd.grad(expected.sum(), x)[0])


def test_a_selection_gives_what_all_members_gave():
    chain = network()
    sets = [initial_weights(chain, seed) for seed in range(MEMBERS)]
    gradients = ChainGradients(chain, stack(sets), "cross_entropy")
    images, labels, index = drawn(chain).float(), known(CLASSES), torch.tensor([2, 0])
    some = gradients.select(index)(images[index], labels[index])
    for part, whole in zip(some, gradients(images, labels), strict=True):
        torch.testing.assert_close(part, whole[index])


def test_an_unknown_loss_is_refused():
    with refused("loss: 'square' is not known", kind=ConfigError):
        ChainGradients(network(), initial_weights(network(), 0), "square")
    with refused("loss: mse is not known;", " hinge.", kind=ConfigError):
        mean_loss("mse", torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))


# --- Losses of one output, and the margins that a gradient gives away -----------------------------


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
    of_classes = name in OF_CLASSES
    values = np.array([0.3, -1.2, 0.7]) if of_classes else np.array([0.4])
    for label in (0, 2) if of_classes else (-1, 1):
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
