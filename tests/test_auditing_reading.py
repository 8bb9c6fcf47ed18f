"""Networks read as graphs: kinds and shapes of layers, chains where they are ones, counts."""

import numpy as np
import pytest
import torch
from torch import nn
from torchvision import models

import audited
from gradleak.auditing.client import gradient
from gradleak.auditing.conversion import convert
from gradleak.auditing.counts import counts, critical
from gradleak.auditing.reading import read
from gradleak.errors import ConfigError, NotApplicable
from gradleak.gradients import capture
from gradleak.rank_analysis import analyse

CHAINS = {
    "cnn3": (audited.cnn3, (3, 32, 32)),
    "functional": (lambda: audited.Functional().eval(), (1, 28, 28)),
    "resnet18": (audited.resnet18, (3, 32, 32)),
    "resnet50": (lambda: models.resnet50(num_classes=10), (3, 64, 64)),
    "vgg16": (lambda: models.vgg16(num_classes=10), (3, 224, 224)),
}
NO_CHAINS = {
    "two_branches": (audited.TwoBranches, (3, 16, 16), "coarse is on a branch of its own"),
    "vit": (audited.vit, (3, 16, 16), "reshape .* does more than flatten"),
    "pre_activation": (audited.pre_activation, (3, 8, 8), "a is taken by relu and by add"),
    "mobilenet": (lambda: models.mobilenet_v2(num_classes=10), (3, 32, 32), "ReLU6"),
    "densenet": (
        lambda: models.densenet121(num_classes=10),
        (3, 32, 32),
        "cat .* no step of a chain",
    ),
    "alexnet": (models.alexnet, (3, 224, 224), "another pool"),
    "softmax": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 2), nn.Softmax(1)),
        (3, 2, 2),
        "Softmax",
    ),
    "scaled": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 2, 1, groups=1), nn.AvgPool2d(3, 1, 1), nn.Flatten(), nn.Linear(8, 2)
        ),
        (3, 2, 2),
        "another pool",
    ),
}


@pytest.mark.parametrize("name", ["cnn3", "functional", "resnet18"])
def test_a_chain_shares_the_gradient_of_the_network_it_was_read_from(name):
    build, size = CHAINS[name]
    torch.manual_seed(0)
    module = build()
    found = convert(read(module, size), module, name)
    draw = np.random.default_rng(0)
    images, labels = draw.random((3, *size)), np.array([1, 2, 3])
    mode = "training" if found.chain.is_normalised else "evaluation"
    ours = capture(
        found.chain,
        found.weights(module),
        images,
        labels,
        precision="float32",
        device=torch.device("cpu"),
        mode=mode,
    )
    theirs = gradient(module, images, labels, "cross_entropy", mode)
    parameters = {own: name for own, name in found.names.items() if "running" not in own}
    assert sorted(parameters.values()) == sorted(theirs)
    for own, name in parameters.items():
        scale = np.abs(theirs[name]).max()
        assert np.abs(ours[own] - theirs[name]).max() <= 1e-4 * scale + 1e-7, name


@pytest.mark.parametrize("name", CHAINS)
def test_networks_that_are_chains_keep_all_their_parameters(name):
    build, size = CHAINS[name]
    module = build()
    chain = convert(read(module, size), module, name).chain
    assert chain.parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", NO_CHAINS)
def test_what_keeps_a_network_from_being_a_chain_is_named(name):
    build, size, reason = NO_CHAINS[name]
    module = build()
    with pytest.raises(NotApplicable, match=reason) as error:
        convert(read(module, size), module, name)
    assert str(error.value).endswith(".")


def test_dropout_that_was_traced_in_evaluation_does_nothing():
    module = audited.Functional().eval()
    chain = convert(read(module, (1, 28, 28)), module, "f").chain
    assert not chain.has_dropout
    trained = audited.Functional()
    assert convert(read(trained, (1, 28, 28)), trained, "f").chain.has_dropout


def test_a_network_is_left_as_it_was():
    module = audited.resnet18()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    reading = read(module, (3, 32, 32))
    convert(reading, module, "net")
    gradient(module, np.zeros((2, 3, 32, 32)), np.array([0, 1]), "cross_entropy", "training")
    assert module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_layers_have_the_kinds_and_shapes_of_the_forward_pass():
    reading = read(audited.TwoBranches(), (3, 16, 16))
    kinds = {layer.name: layer.kind for layer in reading.layers}
    assert kinds == {
        "fine": "conv",
        "tanh": "activation",
        "coarse": "conv",
        "tanh_1": "activation",
        "cat": "concat",
        "flatten": "reshape",
        "head": "linear",
    }
    assert reading.named("cat").inputs == ("tanh", "tanh_1")
    assert reading.named("cat").output_shape == (8, 16, 16)
    assert reading.named("coarse").weights == 3 * 4 * 25
    assert reading.classes == 10


def test_attention_is_unreadable_by_name():
    reading = read(audited.vit(), (3, 16, 16))
    (layer,) = reading.unreadable
    assert layer.name == "encoder.layers.encoder_layer_0.self_attention"
    assert "multiplies values made of its input" in layer.unreadable
    # Fully connected at 17 places: a 1x1 convolution over them.
    inner = reading.named("encoder.layers.encoder_layer_0.mlp.0")
    assert inner.shape.size == (17, 1) and inner.shape.channels == 24


@pytest.mark.parametrize("name", ["cnn3", "functional"])
def test_counts_are_those_of_the_rank_analysis_of_chains(name):
    build, size = CHAINS[name]
    module = build()
    reading = read(module, size)
    ours = counts(reading)
    theirs = analyse(convert(reading, module, name).chain)
    assert [(r.unknowns, r.weights, r.outputs, r.carried, r.virtual, r.index) for r in ours] == [
        (r.unknowns, r.weights, r.outputs, r.carried, r.virtual, r.index) for r in theirs
    ]


def test_counts_of_a_residual_network_differ_at_projections_alone():
    module = audited.resnet18()
    reading = read(module, (3, 32, 32))
    found = convert(reading, module, "net")
    ours = {row.layer: row for row in counts(reading)}
    theirs = dict(zip(found.layers, analyse(found.chain), strict=True))
    ends = {name for name in found.layers if name.endswith(".0.conv2") and "layer1" not in name}
    for name, row in theirs.items():
        if name not in ends:
            assert (ours[name].index, ours[name].virtual) == (row.index, row.virtual), name


def test_a_branch_is_carried_past_the_other():
    rows = {row.layer: row for row in counts(read(audited.TwoBranches(), (3, 16, 16)))}
    image, branch = 3 * 16 * 16, 4 * 16 * 16
    # The image waits for the second branch, then what the first one gave waits for the second.
    assert (rows["fine"].carried, rows["fine"].outputs) == (0, branch + image)
    assert (rows["coarse"].carried, rows["coarse"].unknowns) == (branch, image + branch)
    assert rows["head"].unknowns == 2 * branch


def test_counts_begin_anew_behind_attention():
    rows = counts(read(audited.vit(), (3, 16, 16)))
    behind = [row for row in rows if row.note]
    assert [row.virtual for row in behind] == [0]
    assert "self_attention" in behind[0].note
    assert critical(rows).index == max(row.index for row in rows)


@pytest.mark.parametrize(
    ("build", "size", "sentence"),
    [
        (
            audited.Branching,
            (3, 2, 2),
            r"Branching\.forward cannot be read as a graph \(line \d+ of audited\.py",
        ),
        (audited.cnn3, (3, 31, 31), r"Sequential does not take an image of 3x31x31 \("),
        (audited.cnn3, (1, 32, 32), r"does not take an image of 1x32x32"),
        (nn.Tanh, (1, 2, 2), "Tanh has no parameters"),
        (lambda: nn.Conv2d(1, 1, 1), (1, 4, 4), "gives 2x1x4x4 for 2 images, not 2 rows"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(build, size, sentence):
    with pytest.raises(ConfigError, match=sentence) as error:
        read(build(), size)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")
