"""Gradients under residual networks and derivatives of their distance, against autograd."""

import numpy as np
import pytest
import torch
from torch import nn

from chains import conv
from gradleak.errors import ConfigError
from gradleak.matching.branches import BranchGradients
from gradleak.matching.chain_gradients import stack
from gradleak.matching.distances import Cosine
from gradleak.models.activations import Activation
from gradleak.models.build import load
from gradleak.models.chain import Chain, ConvLayer, ConvSpec, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.models.resnet import specs

MEMBERS, CLASSES = 3, 5
RELU = Activation("relu")


def resnet(kind="resnet18", side=16, **more):
    return Chain(kind, (3, side, side), specs(kind, 4, CLASSES, **more))


def bottleneck():
    """One bottleneck that halves the image, one with biases before its norms and a smooth bend."""

    def layer(filters, kernel, stride=1, **more):
        return conv(filters, kernel, stride, kernel // 2, norm="batch", **more)

    return Chain(
        "bottleneck",
        (3, 8, 8),
        (
            layer(4, 3, activation="relu"),
            layer(2, 1, activation="relu"),
            layer(2, 3, 2, activation="leaky_relu", slope=0.3),
            layer(8, 1, activation="relu", skip=3, projection=True),
            layer(3, 1, bias=True, activation="tanh"),
            layer(3, 3, bias=True, activation="identity"),
            layer(8, 1, activation="sigmoid", skip=3, pool="global"),
            LinearSpec(CLASSES),
        ),
    )


def lenet():
    layers = [
        conv(4, 5, 2, 2, bias=True, activation="sigmoid"),
        conv(4, 5, 1, 2, bias=True, activation="sigmoid", pool="average"),
        conv(4, 3, 1, 1, bias=True, activation="sigmoid", pool="max"),
    ]
    hidden = LinearSpec(6, True, Activation("sigmoid"))
    return Chain("lenet", (3, 16, 16), (*layers, hidden, LinearSpec(CLASSES)))


def skips():
    """Skips and a projection from the image itself, one of them without a norm."""
    size = (3, 3), (1, 1), (1, 1)
    return Chain(
        "skips",
        (3, 6, 6),
        (
            ConvSpec(3, *size, True, Activation("tanh"), skip=1),
            ConvSpec(4, *size, False, RELU, skip=2, projection=True),
            ConvSpec(4, *size, False, Activation("identity"), skip=1, norm="batch", pool="max3"),
            LinearSpec(CLASSES),
        ),
    )


CHAINS = {
    "resnet18": resnet(),
    "cut": resnet(cut=(3, 4)),
    "large": resnet(side=32, stem="large"),
    "bottleneck": bottleneck(),
    "lenet": lenet(),
    "skips": skips(),
}


def drawn_weights(chain, seed, statistics=True):
    """Weights whose norms are not at their start, with running statistics."""
    draw = np.random.default_rng(seed)
    out = dict(initial_weights(chain, seed))
    for name in [name for name in out if "_norm." in name]:
        out[name] = draw.uniform(0.5, 1.5, out[name].shape) * (1 if "weight" in name else 0.2)
        if statistics and name.endswith(".weight"):
            base = name.removesuffix("weight")
            out[f"{base}running_mean"] = draw.uniform(-0.3, 0.3, out[name].shape)
            out[f"{base}running_var"] = draw.uniform(0.1, 2.0, out[name].shape)
    return {name: np.asarray(value, np.float32) for name, value in out.items()}


def reference(chain, weights, mode, images, labels, loss="cross_entropy"):
    """Gradients of one member with a graph, the usual way."""
    module = load(chain, weights, torch.float64).train(mode == "training")
    output = module(images)
    value = (
        nn.functional.cross_entropy(output, labels)
        if loss == "cross_entropy"
        else nn.functional.nll_loss(output, labels)
    )
    found = torch.autograd.grad(value, list(module.parameters()), create_graph=True)
    return dict(zip(dict(module.named_parameters()), found, strict=True))


def case(name, mode, batch, own):
    chain = CHAINS[name]
    statistics = mode == "evaluation"
    sets = [drawn_weights(chain, m if own else 0, statistics) for m in range(MEMBERS)]
    draw = np.random.default_rng(7)
    images = torch.from_numpy(draw.standard_normal((MEMBERS, batch, *chain.input)))
    labels = torch.from_numpy(draw.integers(0, CLASSES, (MEMBERS, batch)))
    network = BranchGradients(
        chain, stack(sets), "cross_entropy", mode=mode, dtype=torch.float64
    )
    return chain, sets, images, labels, network


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("name", CHAINS)
def test_gradients_and_the_derivative_of_their_cosine_equal_autograd(name, mode, batch, own):
    chain, sets, images, labels, network = case(name, mode, batch, own)
    images.requires_grad_()
    expected = [
        reference(chain, weights, mode, x, y)
        for weights, x, y in zip(sets, images, labels, strict=True)
    ]
    assert network.names == tuple(expected[0])
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    found = network(images, labels, scale)
    for parameter, ours in zip(network.names, found, strict=True):
        theirs = torch.stack([scale[m] * expected[m][parameter] for m in range(MEMBERS)]).detach()
        whole = float(theirs.abs().max())
        # The bias before a norm has a gradient of 0 that is rounded.
        atol = 1e-8 * whole if whole > 1e-12 else 1e-12
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=atol)

    draw = torch.Generator().manual_seed(2)
    targets = [torch.randn(f.shape, dtype=f.dtype, generator=draw) for f in found]
    ignored = network.names[-1]
    compared = [parameter != ignored for parameter in network.names]
    theirs = torch.stack(
        [cosine(expected[m], targets, m, network.names, ignored) for m in range(MEMBERS)]
    )
    value, down, in_logits = network.descend(images, labels, Cosine(targets, compared), scale)
    assert in_logits is None
    close(value, theirs.detach())
    close(down, torch.autograd.grad(theirs.sum(), images)[0])


def cosine(gradients, targets, member, names, ignored):
    pairs = [
        (gradients[name].flatten(), target[member].flatten())
        for name, target in zip(names, targets, strict=True)
        if name != ignored
    ]
    ours, theirs = (torch.cat(side) for side in zip(*pairs, strict=True))
    return 1.0 - ours @ theirs / ours.norm()
