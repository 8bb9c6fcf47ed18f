"""Networks read as graphs: kinds and shapes of layers, chains where they are ones, counts."""

import re
from collections import namedtuple
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision import models

import audited
from audited import CPU, Net, Steps, made, refused
from gradleak.analysis.rank_analysis import analyse, critical
from gradleak.client.capture import capture
from gradleak.errors import NotApplicable
from gradleak.reading.conversion import convert
from gradleak.reading.fx_graph import read
from gradleak.reading.gradients import gradient
from gradleak.reading.structure import counts
from gradleak.reading.untraced import multiply_adds, read_or_run


def layers(*parts):
    return lambda: nn.Sequential(*parts)


HEAD = nn.Conv2d(3, 4, 3), nn.ReLU()
UNREAD = r"Net\.forward cannot be read as a graph \(line \d+ of audited\.py"


def unreadable(reading):
    return [layer for layer in reading.layers if layer.unreadable]


SMALL = (3, 8, 8)


def pooled(pool, inputs):
    return layers(
        *HEAD, pool, nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(inputs, 5)
    )()


def log_softmax():
    return Steps(after=lambda z: functional.log_softmax(z, 1))


CHAINS = {
    "cnn3": (audited.cnn3, (3, 32, 32)),
    "functional": (lambda: audited.lenet_by_functions().eval(), (1, 28, 28)),
    "all_convolutions": (audited.all_convolutions, (1, 28, 28)),
    "normalised": (lambda: Steps(before=lambda net, x: (x * 2 - net.mean) / net.std), (3, 8, 8)),
    "log_softmax": (log_softmax, (3, 8, 8)),
    "resnet18": (audited.resnet18, (3, 32, 32)),
    "resnet50": (lambda: models.resnet50(num_classes=10), (3, 64, 64)),
    "vgg16": (lambda: models.vgg16(num_classes=10), (3, 224, 224)),
    "pool_of_3": (lambda: pooled(nn.MaxPool2d(3), 4 * 2 * 2), SMALL),
    "pool_with_rest": (lambda: pooled(nn.MaxPool2d(2, 3), 4 * 2 * 2), (3, 9, 9)),
    "pool_of_odd_size": (lambda: pooled(nn.AvgPool2d(2), 4 * 3 * 3), (3, 9, 9)),
    "pool_by_a_list": (lambda: pooled(nn.MaxPool2d([3, 3], (2, 2), [1]), 4 * 3 * 3), SMALL),
    "mean_by_a_list": (
        lambda: pooled(nn.AvgPool2d(2, padding=[0, 0], count_include_pad=False), 4 * 3 * 3),
        SMALL,
    ),
    "mean_with_padding": (lambda: pooled(nn.AvgPool2d(3, 2, 1), 4 * 3 * 3), SMALL),
    "adaptive_mean": (lambda: pooled(nn.AdaptiveAvgPool2d(2), 4 * 2 * 2), SMALL),
}
POOLED = "^2 is the last layer with weights, .*: its pool follows it"
NO_CHAINS = [
    (audited.two_branches, (3, 16, 16), "coarse is on a branch of its own"),
    (audited.vit, (3, 16, 16), "reshape .* does more than flatten"),
    (audited.pre_activation, SMALL, "a feeds both relu and add"),
    (models.mobilenet_v2, (3, 32, 32), "ReLU6"),
    (models.alexnet, (3, 224, 224), "drops values of something other than"),
    (models.densenet121, (3, 32, 32), "cat .* cannot be a step of a chain: a chain has"),
    (layers(nn.Flatten(), nn.Linear(12, 2), nn.Softmax(1)), (3, 2, 2), "Softmax"),
    (layers(*HEAD, nn.Conv2d(4, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), SMALL, POOLED),
    (partial(pooled, nn.MaxPool2d(2, dilation=2), 16), SMALL, "no pool that a step can be"),
    (partial(pooled, nn.MaxPool2d(4, ceil_mode=True), 16), SMALL, "no pool that a step can be"),
    (partial(pooled, nn.MaxPool2d((2, 1)), 4 * 3 * 6), SMALL, "no pool that a step can be"),
    (
        partial(pooled, nn.AvgPool2d(2, divisor_override=3), 36),
        SMALL,
        "no pool that a step can be",
    ),
    (
        partial(pooled, nn.AvgPool2d(2, 2, 1, count_include_pad=False), 64),
        SMALL,
        "no pool that a step can be",
    ),
    (partial(pooled, nn.AdaptiveAvgPool2d(4), 64), SMALL, "no pool that a step can be"),
    (
        partial(Steps, lambda net, x: x * net.conv.bias.mean()),
        SMALL,
        "mul .* changes the image by weights",
    ),
    (partial(Steps, lambda net, x: net.mean * x + x), SMALL, "with the whole image alone"),
    (partial(Steps, lambda net, x: x * 0), SMALL, "whole image alone"),
    (partial(Steps, after=lambda z: z / 2), SMALL, "truediv .* with the whole image"),
    (
        partial(Steps, None, lambda x: torch.cat(torch.chunk(x, 2, 1), 1)),
        SMALL,
        "chunk .* which no step of a chain does",
    ),
    (partial(Steps, lambda net, x: x - x.mean((2, 3), True)), SMALL, "mean pools something other"),
    (log_softmax, SMALL, "log-softmax .* with loss cross_entropy"),
]


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_shares_the_gradient_of_the_network_it_was_read_from(name):
    build, size = CHAINS[name]
    module = made(build)
    found = convert(read(module, size), module, name)
    assert found.chain.parameters == sum(p.numel() for p in module.parameters())
    if name in ("resnet50", "vgg16"):
        return  # large
    draw = np.random.default_rng(0)
    images, labels = draw.random((3, *size)), np.array([1, 2, 3])
    mode = "training" if found.chain.is_normalised else "evaluation"
    taken = images if found.before is None else found.before(images)
    how = {"precision": "float32", "device": CPU, "mode": mode}
    ours = capture(found.chain, found.weights(module), taken, labels, **how)
    theirs = gradient(module, images, labels, "cross_entropy", mode)
    parameters = {own: name for own, name in found.names.items() if "running" not in own}
    assert sorted(parameters.values()) == sorted(theirs)
    for own, name in parameters.items():
        scale = np.abs(theirs[name]).max()
        expected = theirs[name].reshape(ours[own].shape)
        assert np.abs(ours[own] - expected).max() <= 1e-4 * scale + 1e-7, name


@pytest.mark.parametrize(("build", "size", "reason"), NO_CHAINS)
def test_what_keeps_a_network_from_being_a_chain_is_named(build, size, reason):
    module, loss = build(), "raw_logits" if build is log_softmax else "cross_entropy"
    with refused(match=reason, kind=NotApplicable):
        convert(read(module, size), module, "net", loss)


@pytest.mark.parametrize("mode", [True, False])
def test_dropout_is_read_as_in_training_however_the_network_was_left(mode):
    module = audited.lenet_by_functions().train(mode)
    assert convert(read(module, (1, 28, 28)), module, "f").chain.has_dropout
    assert {part.training for part in module.modules()} == {mode}


def same(module, before):
    after = module.state_dict()
    return all(torch.equal(after[name], value) for name, value in before.state_dict().items())


def test_reading_moves_no_statistics_and_keeps_each_parts_mode():
    def run(net, x):
        z = net.frozen(net.fc(x.flatten(1)))
        return functional.batch_norm(z, net.mean, net.var, training=net.training)

    module = Net(run, fc=nn.Linear(12, 3), frozen=nn.BatchNorm1d(3).eval())
    module.register_buffer("mean", torch.zeros(3))
    module.register_buffer("var", torch.ones(3))
    before = deepcopy(module)
    read(module, (3, 2, 2))
    assert module.training and not module.frozen.training and same(module, before)


Both = namedtuple("Both", "scores more")


@pytest.mark.parametrize("kernel", [2, 5])
def test_a_network_that_gives_more_in_training_is_read_as_it_evaluates(kernel):
    def run(net, x):
        scores = net.fc(x.flatten(1))
        if not net.training:
            return scores
        return Both(scores, functional.avg_pool2d(x, kernel).flatten(1).sum(1))

    found = read(Net(run, fc=nn.Linear(12, 3), more=nn.Linear(12, 3)), (3, 2, 2))
    assert [layer.name for layer in found.layers] == ["flatten", "fc"]


@pytest.mark.parametrize(
    "steps",
    [
        {"before": lambda net, x: (x - net.mean) / net.std},
        {"before": lambda net, x: -x * 2 - 1},
        {"before": lambda net, x: x - x.mean((2, 3), True)},
        {"between": lambda x: 1 - 0.5 * x},
        {"between": lambda x: torch.cat(torch.split(x, 2, 1)[::-1], 1)},
        {"between": lambda x: torch.cat([x[:, :1], x.narrow(1, 1, 3)], 1)},
        {"after": lambda z: z / 2},
    ],
)
def test_linear_steps_are_not_called_anything_else(steps):
    reading = read(Steps(**steps), (3, 8, 8))
    assert unreadable(reading) == [row for row in counts(reading) if row.note] == []


def test_steps_that_are_not_linear_are_unreadable():
    for step in (lambda x: x * x, lambda x: 1 / (x + 2), lambda x: x * x.mean(), lambda x: x**2):
        (layer,) = unreadable(read(Steps(between=step), (3, 8, 8)))
        assert "no linear system for" in layer.unreadable


def test_parts_of_a_value_are_carried_apart_and_a_branch_past_the_other():
    def run(net, x):
        left, right = torch.chunk(x, 2, 1)
        return net.fc(torch.cat([net.a(left), net.b(right)], 1).flatten(1))

    a, b = (nn.Conv2d(1, 2, 3, padding=1) for _ in range(2))
    halves = Net(run, a=a, b=b, fc=nn.Linear(4 * 16, 3))
    rows = {row.layer: row for row in counts(read(halves, (2, 4, 4)))}
    assert (rows["a"].unknowns, rows["a"].carried) == (32, 16)
    assert (rows["b"].unknowns, rows["b"].carried) == (16 + 32, 32)
    reading = read(audited.two_branches(), (3, 16, 16))
    rows = {row.layer: row for row in counts(reading)}
    image, branch = 3 * 16 * 16, 4 * 16 * 16
    # The image waits for the second branch, then what the first one gave waits for the second.
    assert (rows["fine"].carried, rows["fine"].outputs) == (0, branch + image)
    assert (rows["coarse"].carried, rows["coarse"].unknowns) == (branch, image + branch)
    assert rows["head"].unknowns == 2 * branch
    kinds = " ".join(f"{layer.name}:{layer.kind}" for layer in reading.layers)
    branches = "fine:conv tanh:activation coarse:conv tanh_1:activation"
    assert kinds == f"{branches} cat:concat flatten:reshape head:linear"
    assert reading.named("cat").inputs == ("tanh", "tanh_1")
    assert reading.named("cat").output_shape == (8, 16, 16)
    assert reading.named("coarse").weights == 3 * 4 * 25
    assert reading.classes == 10


def test_attention_is_unreadable_by_name_and_counts_begin_anew_behind_it():
    reading = read(audited.vit(), (3, 16, 16))
    (layer,) = unreadable(reading)
    assert layer.name == "encoder.layers.encoder_layer_0.self_attention"
    assert "multiplies values made of its input" in layer.unreadable
    # Fully connected at 17 places: a 1x1 convolution over them.
    inner = reading.named("encoder.layers.encoder_layer_0.mlp.0")
    assert inner.shape.size == (17, 1) and inner.shape.channels == 24
    rows = counts(reading)
    behind = [row for row in rows if row.note]
    assert [row.virtual for row in behind] == [0]
    assert "self_attention" in behind[0].note
    assert critical(rows).index == max(row.index for row in rows)


@pytest.mark.parametrize("name", ["cnn3", "functional"])
def test_counts_are_those_of_the_rank_analysis_of_chains(name):
    build, size = CHAINS[name]
    module = build()
    reading = read(module, size)
    both = counts(reading), analyse(convert(reading, module, name).chain)
    ours, theirs = ([replace(row, layer="", note="") for row in rows] for rows in both)
    assert ours == theirs


def test_a_residual_network_is_left_as_it_was_and_its_counts_differ_at_projections_alone():
    module = audited.resnet18()
    before, reading = deepcopy(module), read(module, (3, 32, 32))
    found = convert(reading, module, "net")
    gradient(module, np.zeros((2, 3, 32, 32)), np.array([0, 1]), "cross_entropy", "training")
    assert module.training and same(module, before)
    ours = {row.layer: row for row in counts(reading)}
    theirs = dict(zip(found.layers, analyse(found.chain), strict=True))
    ends = {f"layer{number}.0.conv2" for number in (2, 3, 4)}
    for name in theirs.keys() - ends:
        one, other = ours[name], theirs[name]
        assert (one.index, one.virtual) == (other.index, other.virtual), name


def test_what_cannot_be_read_is_one_sentence():
    for build, size, sentence in (
        (audited.branching, (3, 2, 2), UNREAD),
        (audited.cnn3, (3, 31, 31), r"Sequential does not take an image of 3x31x31 \("),
        (audited.cnn3, (1, 32, 32), r"does not take an image of 1x32x32"),
        (nn.Tanh, (1, 2, 2), "Tanh has no parameters"),
        (lambda: nn.Conv2d(1, 1, 1), (1, 4, 4), "gives 2x1x4x4 for 2 images, not 2 rows"),
    ):
        with refused(match=sentence):
            read(build(), size)


def test_what_cannot_be_traced_is_run_and_counted():
    found = read_or_run(audited.branching(), (3, 2, 2))
    assert re.match(UNREAD, found.untraced)
    assert (found.layers, found.module, found.classes, found.multiply_adds) == ((), None, 2, 24)
    # Counted as of a network that can be traced.
    model = audited.cnn3()
    images = torch.rand(2, 3, 32, 32)
    assert multiply_adds(model, images) == read(model, (3, 32, 32)).multiply_adds
    assert read_or_run(model, (3, 32, 32)).untraced == ""
    with refused(match="does not take an image"):
        read_or_run(model, (3, 31, 31))
