"""The table of layers: ranks and what they are worth, the critical layer, c(M) where defined."""

import numpy as np
import pytest
import torch
from torch import nn

import audited
from audited import Net, made, refused
from gradleak.analysis.copa_index import structural_index
from gradleak.analysis.rank_analysis import network_index
from gradleak.errors import NotApplicable
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape
from gradleak.operators.system import LayerSystem
from gradleak.reading.conversion import convert
from gradleak.reading.fx_graph import read
from gradleak.reading.gradients import deltas
from gradleak.reading.structure import structure, without_gaps


def analysed(module, size, *, mode="training"):
    reading = read(module, size)
    converted, why = None, ""
    try:
        converted = convert(reading, module, "net")
    except NotApplicable as error:
        why = str(error)
    layers = [layer.name for layer in reading.layers if layer.is_linear and layer.shape]
    image = np.random.default_rng(0).random(size)
    known = deltas(module, image, 1, "cross_entropy", mode, layers)
    return structure(reading, converted, why, known), converted


def row(found, name):
    return next(layer for layer in found.layers if layer.layer == name)


def first(module, size):
    return row(analysed(module, size)[0], "0")


def chain(conv, features, classes=3, activation=nn.Tanh):
    return nn.Sequential(conv, activation(), nn.Flatten(), nn.Linear(features, classes))


def killed(module):
    module[0].weight.data[0] = 0
    return module


def test_a_chain_has_copas_index_the_papers_rank_analysis_and_ranks_that_say_their_worth():
    found, converted = analysed(made(audited.cnn3), (3, 32, 32))
    value, exact = structural_index(converted.chain)
    assert (found.security, found.security_kind) == (value, "exact" if exact else "at most")
    assert found.index == network_index(converted.chain)
    assert [layer.layer for layer in found.layers if layer.critical] == [found.critical]
    assert row(found, found.critical).index == found.index
    assert found.obstacles == ()
    kinds = {layer.layer: layer.rank_kind for layer in found.layers}
    assert kinds["5"] == "exact"  # fully connected
    assert set(kinds.values()) <= {"exact", "measured"}
    for layer in found.layers[:-1]:
        assert layer.condition > 1 and 0 <= layer.free == layer.own_unknowns - layer.rank


def test_no_rank_is_exact_where_the_next_layer_skips_positions():
    # Issue 26: 147 by the sizes of the first layer alone, of which 108 are there.
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 11, 5, 2), nn.Tanh(), nn.Conv2d(11, 9, 1, 2), nn.Tanh(), nn.Flatten()
    found, converted = analysed(nn.Sequential(*layers, nn.Linear(9, 10)), (3, 8, 8))
    one, second = row(found, "0"), row(found, "2")
    assert (one.rank, one.rank_kind, one.free) == (108, "measured", 84)
    assert one.condition > 1 and "the gradient of the output is 0 at 3 of 4 positions" in one.note
    assert (second.rank, second.rank_kind) == (11, "exact")
    assert (found.security, found.security_kind) == (-84 - 33 / 2, "measured")
    assert structural_index(converted.chain) == (found.security, False)


@pytest.mark.parametrize(("size", "kind"), [(8, "measured"), (34, "at most")])
def test_a_rank_behind_a_relu_is_never_proved_by_sizes(size, kind):
    module = made(lambda: chain(nn.Conv2d(3, 6, 3), 6 * (size - 2) ** 2, activation=nn.ReLU))
    assert first(module, (3, size, size)).rank_kind == kind
    module[1] = nn.Tanh()
    assert first(module, (3, size, size)).rank_kind == "exact"


def test_a_proved_rank_that_these_weights_do_not_have_is_measured():
    module = made(lambda: chain(nn.Conv2d(4, 3, 2), 48))
    before = first(module, (4, 5, 5))
    assert before.rank_kind == "exact"
    for value in module[0].parameters():
        value.data[1] = value.data[0]
    after = first(module, (4, 5, 5))
    assert after.rank_kind == "measured" and after.rank < before.rank


def test_a_measured_rank_is_that_of_the_dense_system():
    module = made(lambda: chain(nn.Conv2d(3, 2, 3, padding=1, bias=False), 128, 4))
    found = first(module, (3, 8, 8))
    image = np.random.default_rng(0).random((3, 8, 8))
    delta = deltas(module, image, 1, "cross_entropy", "training", ["0"])["0"]
    weight = module[0].weight.detach().double()

    def outputs(x):
        z = nn.functional.conv2d(x[None], weight, padding=1)[0]
        k = nn.functional.conv2d(x[:, None], torch.from_numpy(delta)[:, None], padding=1)
        return torch.cat([z.flatten(), k.flatten()])

    dense = torch.autograd.functional.jacobian(outputs, torch.zeros(3, 8, 8).double())
    values = np.linalg.svd(dense.flatten(1).numpy(), compute_uv=False)
    expected = int(np.sum(values > values[0] * 1e-9))
    assert found.rank == expected
    assert found.condition == pytest.approx(values[0] / values[expected - 1], rel=1e-2)


def test_a_large_layer_gets_a_bound_or_a_proof_and_no_condition_number(monkeypatch):
    # As a sparse matrix, VGG-16's second layer takes 30 GB.
    monkeypatch.setattr("gradleak.reading.structure.Convolution", None)
    module = chain(nn.Conv2d(3, 4, 3, padding=1), 4 * 48 * 48, activation=nn.ReLU)
    found = first(module, (3, 48, 48))
    assert found.own_unknowns == 6912 and found.condition is None
    assert found.rank_kind in ("exact", "at most") and "no condition number" in found.note
    dead = first(killed(module), (3, 48, 48))
    assert dead.rank_kind == "at most" and dead.rank == found.rank and "is 0" in dead.note


def test_groups_count_each_for_itself_and_pixels_that_a_stride_skips_are_free():
    apart = first(chain(nn.Conv2d(4, 4, 3, groups=4), 4 * 16), (4, 6, 6))
    alone = first(chain(nn.Conv2d(1, 1, 3), 16), (1, 6, 6))
    assert apart.rank == 4 * alone.rank and "4 groups" in apart.note
    found = first(made(lambda: chain(nn.Conv2d(256, 512, 1, 2, bias=False), 512)), (256, 2, 2))
    assert found.own_unknowns == 1024 and found.free == 1024 - found.rank >= 768
    assert found.condition is not None


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "size"),
    [(1, 2, 0, (8, 8)), (2, 3, 0, (9, 10)), (3, 2, 0, (8, 9)), (2, 3, 1, (8, 8))],
)
def test_pixels_that_no_window_meets_change_no_singular_value(kernel, stride, padding, size):
    shape = ConvShape(3, 4, (kernel, kernel), (stride, stride), (padding, padding), size)
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((4, 3, kernel, kernel))
    delta = draw.standard_normal((4, *shape.output))
    met = without_gaps(shape)
    assert met.output == shape.output and met.covered == shape.covered
    both = [(Convolution(weight, x), GradientConstraint(delta, x)) for x in (shape, met)]
    values = [np.linalg.svd(LayerSystem(*x).dense(), compute_uv=False) for x in both]
    assert np.allclose(*(v[v > 1e-9 * v[0]] for v in values))
    if not padding:
        assert met.unknowns == met.covered


def test_a_dead_filter_makes_the_rank_a_measured_one_or_a_bound_without_condition(monkeypatch):
    dead = killed(chain(nn.Conv2d(1, 2, 3), 32))
    found = first(dead, (1, 6, 6))
    assert found.rank_kind == "measured" and "is 0" in found.note
    monkeypatch.setattr("gradleak.reading.structure.RANKED", 10)
    found = first(dead, (1, 6, 6))
    assert found.rank_kind == "at most"
    assert "the rank is only bounded" in found.note and "rounding" not in found.note


def test_unreadable_layers_stand_in_the_table_with_their_reason():
    found, converted = analysed(audited.vit(), (3, 16, 16))
    assert converted is None and any("flatten" in x.reason for x in found.obstacles)
    attention = next(layer for layer in found.layers if not layer.readable)
    assert attention.parameters and "attention" in attention.note and attention.index is None
    inner = row(found, "encoder.layers.encoder_layer_0.mlp.0")
    assert inner.rank is not None and inner.condition > 1
    assert found.security is None and "is defined for chains" in found.security_note


def test_all_that_stands_in_the_way_of_a_chain_is_named_once_with_its_layers():
    def pooled():
        return nn.Conv2d(3, 3, 3, padding=1), nn.GELU(), nn.MaxPool2d((3, 1), 1, (1, 0))

    module = nn.Sequential(*pooled(), *pooled(), nn.Conv2d(3, 3, 1, groups=3), nn.Flatten())
    found, converted = analysed(nn.Sequential(module, nn.Linear(192, 4)), (3, 8, 8))
    assert converted is None
    assert [(x.layers, " ".join(x.reason.split()[:6])) for x in found.obstacles] == [
        (("0.1", "0.4"), "is an activation that no closed"),
        (("0.2", "0.5"), "is no pool that a step"),
        (("0.6",), "is a convolution in groups, which"),
    ]


def test_projections_are_counted_with_the_layer_that_their_skip_ends_at():
    found, _ = analysed(audited.normed(), (3, 8, 8))
    projection = row(found, "skip")
    assert projection.index is None and projection.rank is not None
    assert "skip ends" in projection.note
    assert found.security is None and "skips, norms and pools" in found.security_note


def test_deltas_are_those_of_the_network():
    module = made(audited.two_branches)
    image = np.random.default_rng(0).random((3, 16, 16))
    found = deltas(module, image, 2, "cross_entropy", "training", ["coarse"])["coarse"]
    shift, shifted = torch.zeros(1, 4, 16, 16), []
    module.coarse.register_forward_hook(lambda _, __, z: z + shift)
    for shift[0, 1, 3, 4] in (1e-2, -1e-2):
        output = module(torch.from_numpy(image[None]).float())
        shifted.append(nn.functional.cross_entropy(output, torch.tensor([2])).item())
    assert found[1, 3, 4] == pytest.approx((shifted[0] - shifted[1]) / 2e-2, rel=0.05, abs=1e-5)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU])
def test_activations_in_place_change_nothing(activation):
    first, second = (nn.Conv2d(1, 4, 5, 2), activation()), (nn.Conv2d(4, 8, 3, 2), activation())
    module = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8, 10))
    apart = analysed(module, (1, 12, 12))[0].layers
    module[1].inplace = module[3].inplace = True
    within = analysed(module, (1, 12, 12))[0].layers
    assert apart[0].condition is not None
    for one, other in zip(apart, within, strict=True):
        assert one == other.model_copy(update={"detail": one.detail})


def test_layers_that_are_not_used_share_nothing_and_those_that_do_not_run_are_left_out():
    def run(net, x):
        z = torch.relu(net.conv(x)).flatten(1)
        net.unused(z)
        return net.head(z) + (net.trained(z) if net.training else 0)

    heads = {name: nn.Linear(32, 3) for name in ("head", "unused", "trained")}
    module, names = Net(run, conv=nn.Conv2d(1, 2, 3), **heads), ["conv", *heads]
    given = module, np.random.default_rng(0).random((1, 6, 6)), 1, "cross_entropy"
    found = deltas(*given, "evaluation", names)
    assert set(found) == {"conv", "head", "unused"}
    assert found["head"].any() and not found["unused"].any()
    assert deltas(*given, "training", names)["trained"].any()
    assert deltas(*given, "evaluation", ["trained"]) == {}


def test_a_head_that_is_not_used_gives_no_input_away():
    def run(net, x):
        net.unused(x.flatten(1))
        return net.head(x.flatten(1))

    two = Net(run, head=nn.Linear(16, 3), unused=nn.Linear(16, 3))
    known = deltas(two, np.ones((1, 4, 4)), 1, "cross_entropy", "training", ["head", "unused"])
    found = structure(read(two, (1, 4, 4)), None, "two heads.", known)
    head, unused = row(found, "head"), row(found, "unused")
    assert (head.rank, head.rank_kind) == (16, "exact")
    assert (unused.rank, unused.rank_kind) == (3, "at most") and "dJ/dZ is 0" in unused.note


def test_a_norm_without_anything_to_normalise_is_one_sentence():
    with refused(match=r"one value a channel .* mode: evaluation"):
        analysed(audited.resnet18(), (3, 32, 32))
