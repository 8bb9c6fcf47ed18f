"""Gradients of many members at once, against autograd through the ordinary module."""

import numpy as np
import pytest
import torch
from torch import nn

from chains import conv, net
from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients, stack
from gradleak.attacks.optimization.engine.jacobian import descend
from gradleak.errors import ConfigError
from gradleak.models.activations import Activation
from gradleak.models.build import load
from gradleak.models.chain import ConvSpec, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.models.losses import LOSSES, OF_CLASSES
from refusals import refused

MEMBERS, BATCH = 3, 2


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


def drawn(chain, members=MEMBERS, batch=BATCH):
    draw = np.random.default_rng(0)
    return torch.from_numpy(draw.standard_normal((members, batch, *chain.input)))


def plain_loss(loss, output, label):
    """Mean loss of a batch (K, m), from labels (K,) or dummy logits (K, m)."""
    if loss == "raw_logits":
        truth = torch.softmax(label, 1) if label.is_floating_point() else torch.eye(4)[label]
        return -(truth * output).sum(1).mean()
    if loss == "cross_entropy":
        if not label.is_floating_point():
            return nn.functional.cross_entropy(output, label)
        return -(torch.softmax(label, 1) * torch.log_softmax(output, 1)).sum(1).mean()

    def value(mu):
        if loss == "logistic":
            return nn.functional.softplus(-mu)
        return torch.exp(-mu) if loss == "exponential" else torch.relu(1.0 - mu)

    if not label.is_floating_point():
        return value(label[:, None] * output).mean()
    share = torch.sigmoid(label)
    return (share * value(output) + (1.0 - share) * value(-output)).mean()


def reference(chain, weights, loss, images, labels):
    """Gradients of one member with a graph, the usual way."""
    module = load(chain, weights, torch.float64)
    return torch.autograd.grad(
        plain_loss(loss, module(images), labels), list(module.parameters()), create_graph=True
    )


def matching(network, images, labels, targets, scale=None):
    """Return Σ_l ||∂ℓ/∂W_l − target_l||² of each member (M,)."""
    pairs = zip(network(images, labels, scale), targets, strict=True)
    return sum((g - t).flatten(1).square().sum(1) for g, t in pairs)


def known(loss, members=MEMBERS, batch=BATCH):
    draw = np.random.default_rng(1)
    if loss in OF_CLASSES:
        return torch.from_numpy(draw.integers(0, 4, (members, batch)))
    return torch.from_numpy(draw.choice([-1, 1], (members, batch)))


CASES = [
    *[(loss, "tanh", True, granted, "none") for loss in LOSSES for granted in (True, False)],
    *[("cross_entropy", name, False, True, "none") for name in ("sigmoid", "leaky_relu", "relu")],
    ("cross_entropy", "identity", True, False, "none"),
    ("cross_entropy", "sigmoid", True, True, "average"),
    ("cross_entropy", "tanh", True, False, "max"),
    ("cross_entropy", "relu", False, True, "max"),
]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("loss", "activation", "bias", "granted", "pool"), CASES)
def test_gradients_and_the_derivative_of_their_distance_equal_autograd(
    loss, activation, bias, granted, pool, own
):
    chain = network(loss, activation, bias, pool=pool)
    sets = [initial_weights(chain, seed if own else 0) for seed in range(MEMBERS)]
    weights = stack(sets)
    assert weights["conv1.weight"].ndim == (5 if own else 4)
    images, labels = drawn(chain).requires_grad_(), known(loss)
    if not granted:
        logits = np.random.default_rng(2).standard_normal((MEMBERS, BATCH, chain.classes))
        labels = torch.from_numpy(logits).requires_grad_()
    gradients = ChainGradients(chain, weights, loss, dtype=torch.float64)
    found = gradients(images, labels)
    expected = [reference(chain, sets[m], loss, images[m], labels[m]) for m in range(MEMBERS)]
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
    value, *written = descend(gradients, images, labels, targets, scale)
    torch.testing.assert_close(value, scaled)
    for a, b in zip(written, torch.autograd.grad(scaled.sum(), variables), strict=not granted):
        torch.testing.assert_close(a, b)
    assert (written[1] is None) == granted


def test_a_selection_gives_what_all_members_gave():
    chain = network()
    sets = [initial_weights(chain, seed) for seed in range(MEMBERS)]
    gradients = ChainGradients(chain, stack(sets), "cross_entropy")
    images, labels = drawn(chain).float(), known("cross_entropy")
    index = torch.tensor([2, 0])
    some = gradients.select(index)(images[index], labels[index])
    for part, whole in zip(some, gradients(images, labels), strict=True):
        torch.testing.assert_close(part, whole[index])


def test_an_unknown_loss_is_refused():
    with refused("loss: 'square' is not known", kind=ConfigError):
        ChainGradients(network(), initial_weights(network(), 0), "square")


def test_a_skip_from_the_image_itself():
    layers = [conv(2, 3, 1, 1, bias=True, skip=skip) for skip in (1, 2)]
    chain = net(*layers, LinearSpec(3), size=(2, 5, 5))
    weights = initial_weights(chain, 0)
    gradients = ChainGradients(chain, weights, "cross_entropy", dtype=torch.float64)
    images, labels = drawn(chain, 1, 1).requires_grad_(), torch.tensor([[1]])
    expected = reference(chain, weights, "cross_entropy", images[0], labels[0])
    targets = [torch.ones_like(value)[None] for value in expected]
    value = sum(((a - b[0]) ** 2).sum() for a, b in zip(expected, targets, strict=True))
    found = descend(gradients, images, labels, targets, torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(found[0][0], value)
    torch.testing.assert_close(found[1], torch.autograd.grad(value, images)[0])
    torch.testing.assert_close(matching(gradients, images, labels, targets)[0], value)
