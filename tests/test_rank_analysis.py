"""Rank analysis: counts against hand counts, skips against equivalent matrices, ranks dense."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chains import chain, conv, image, padded_oracle
from conftest import refused
from figure_files import target_set
from gradleak.analysis.copa_index import index_table, layer_system
from gradleak.analysis.rank_analysis import analyse, critical, largest_alone, network_index
from gradleak.analysis.rank_table import COLUMNS, gradient_rank, measured, table
from gradleak.errors import ConfigError, NotApplicable
from gradleak.models.build import load
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile
from gradleak.models.initial import family_weights, initial_weights
from gradleak.models.numpy_autodiff import deltas, fc_input, forward, margin_label, weight_gradients
from gradleak.models.resnet import specs
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint


def binary(*convolutions, side=32, channels=3, **kwargs):
    return chain(*convolutions, side=side, channels=channels, classes=1, bias=False, **kwargs)


# R-GAP Figure 2 and Table 3, in the order of the paper.
FIGURE_2 = [
    ([(12, 3), (4, 2)], -484, "conv2"),
    ([(3, 4), (4, 3)], 405, "conv1"),
    ([(3, 4), (12, 3), (12, 3, 2)], 405, "conv1"),
    ([(9, 4), (4, 4)], -208, "conv2"),
    ([(4, 5), (4, 4)], 316, "conv2"),
]


@pytest.mark.parametrize(("layers", "expected", "layer"), FIGURE_2)
def test_networks_of_figure_2_by_either_count_of_virtual_constraints(layers, expected, layer):
    network = binary(*(conv(*sizes) for sizes in layers))
    rows = analyse(network)
    assert network_index(network) == expected
    assert max(row.index_printed for row in rows) == expected
    assert critical(rows).layer == layer


def test_counts_by_hand():
    rows = analyse(binary(conv(9, 4), conv(4, 4)))
    found = [(r.unknowns, r.weights, r.outputs, r.virtual, r.index) for r in rows]
    assert found[:2] == [(3072, 432, 7569, 0, -4929), (7569, 576, 2704, 4497, -208)]
    assert found[2:] == [(2704, 2704, 1, 208, -209)]
    # Two deficient layers in a row are where the two counts differ.
    first, second, _ = analyse(binary(conv(1, 2), conv(1, 8, stride=8)))
    assert (first.index, first.index_printed) == (2099, 2099)
    assert (second.virtual, second.virtual_printed) == (0, -2099)
    assert second.index == second.index_printed - 2099 == 961 - 64 - 9
    plain, biased = (binary(conv(4, 3, bias=b), conv(4, 3), side=9) for b in (False, True))
    assert [r.index for r in analyse(plain)] == [r.index for r in analyse(biased)]
    padded = analyse(binary(conv(4, 3, padding=1), side=8, channels=2))[0]
    assert padded.index == 2 * 64 - 4 * 2 * 9 - 4 * 64


SIZES = st.tuples(*(st.integers(*ends) for ends in ((1, 8), (1, 3), (1, 2), (0, 1))))
LAYERS = st.lists(SIZES, min_size=1, max_size=4)


def drawn(layers):
    network = binary(*[conv(f, k, s, p) for f, k, s, p in layers], side=12, channels=2)
    try:
        _ = network.layers
    except ConfigError:
        assume(False)
    return network


@given(LAYERS, st.integers(1, 40))
@settings(max_examples=60)
def test_both_counts_agree_on_the_first_deficient_layer_and_on_the_sign(layers, filters):
    network = drawn(layers)
    rows = analyse(network)
    index, printed = max(r.index for r in rows), max(r.index_printed for r in rows)
    assert (index > 0) == (printed > 0)
    assert all(row.virtual >= row.virtual_printed for row in rows)
    for row in rows:
        assert row.index == row.index_printed
        if row.index > 0:
            break
    else:
        assert index == printed
    # A layer behind changes nothing before it.
    *specs, last = network.specs
    longer = Chain("longer", network.input, (*specs, conv(filters, 1), last))
    assert analyse(longer)[: len(specs)] == rows[:-1]
    if critical(rows).layer.startswith("conv"):
        assert network_index(longer) >= network_index(network)


@given(LAYERS, st.data())
@settings(max_examples=40)
def test_a_skip_over_one_layer_changes_no_count(layers, data):
    network = drawn([*layers, (layers[-1][0], 3, 1, 1)])
    position = data.draw(st.integers(0, len(layers)))
    shape = network.convolutions[position].shape
    assume((shape.filters, *shape.output) == (shape.channels, *shape.size))
    specs = list(network.specs)
    specs[position] = replace(specs[position], skip=1)
    skipped = Chain("skipped", network.input, tuple(specs))
    found, plain = ([replace(row, note="") for row in analyse(n)] for n in (skipped, network))
    assert found == plain


def equivalent_matrices(network, weights):
    """W* of every layer (R-GAP eq. 30), by following which inputs still wait for a skip's end."""
    last = {end + 1 - a.skip: end for end, a in enumerate(network.convolutions) if a.skip > 1}
    waiting, sizes, out = [], {}, []
    for i, layer in enumerate(network.convolutions):
        matrix = Convolution(weights[f"{layer.name}.weight"], layer.shape).dense()
        passed = np.eye(len(matrix))
        if layer.projection is not None:
            passed = Convolution(weights[f"{layer.name}_skip.weight"], layer.projection).dense()
        columns, sizes[i] = [i, *waiting], matrix.shape[1]
        rows = [{i: matrix + passed if layer.skip == 1 else matrix}]
        rows[0] |= {i + 1 - layer.skip: passed} if layer.skip > 1 else {}
        waiting = [start for start in columns if last.get(start, -1) > i]
        rows += [{start: np.eye(sizes[start])} for start in waiting]
        heights = [len(next(iter(row.values()))) for row in rows]
        empty = [{c: np.zeros((height, sizes[c])) for c in columns} for height in heights]
        out.append(np.block([list((z | row).values()) for z, row in zip(empty, rows, strict=True)]))
    return out


def same(filters=2, over=0, stride=1, **more):
    return conv(filters, 3, stride, padding=1, activation="identity", skip=over, **more)


# Last layer of a block whose skip has a projection.
end = partial(same, projection=True)


SKIPS = {
    "two": [same(), same(), same(over=2)],
    "bottleneck": [same(), same(1), same(over=2)],
    "three": [same(3), same(1), same(2), same(3, over=3)],
    "consecutive": [same(), same(4), same(over=2), same(1), same(over=2)],
    "nested": [same(), same(), same(over=2), same(over=4)],
    "common start": [same(), same(over=2), same(over=3)],
    "overlapping": [same(), same(), same(over=3), same(over=3)],
    "with one": [same(), same(over=1), same(over=2)],
    "projection": [same(), same(3, stride=2), end(3, 2)],
    "projection in three": [same(3), same(1), same(2, stride=2), end(5, 3), same(), end(3, 2)],
    "projection in a skip": [same(3), same(1), end(4, 2), same(2, over=4)],
    "projection over one": [same(3), end(4, 1, stride=2), end(2, 2)],
}


@pytest.mark.parametrize("layers", SKIPS.values(), ids=SKIPS.keys())
def test_skips_count_as_the_equivalent_sequential_network(layers):
    network = chain(*layers, side=4, channels=2, classes=1, bias=False, last="identity")
    weights = initial_weights(network, 0)
    matrices = equivalent_matrices(network, weights)
    x = image(network)
    product = x.ravel()
    for matrix in matrices:
        product = matrix @ product
    features = load(network, weights, torch.float64).features(torch.from_numpy(x)[None])
    np.testing.assert_allclose(product, features[0].detach(), atol=1e-12)
    if not any(layer.projection for layer in network.convolutions):
        np.testing.assert_allclose(product, fc_input(network, weights, x), atol=1e-12)
    counts = [(row.outputs, row.unknowns) for row in analyse(network)]
    assert counts[: len(matrices)] == [matrix.shape for matrix in matrices]


def test_gradient_of_a_projection_constrains_the_input_of_the_skip():
    network = chain(*SKIPS["projection"], side=4, classes=1, bias=False, last="identity")
    weights, x = initial_weights(network, 0), torch.from_numpy(image(network))[None]
    module = load(network, weights, torch.float64)
    seen = {}
    module.conv3.register_forward_hook(lambda *hook: seen.update(z=hook[2]))
    module.conv2.register_forward_hook(lambda *hook: seen.update(x=hook[1][0]))
    value = torch.nn.functional.softplus(module(x)[0, 0])
    ours, delta = torch.autograd.grad(value, (module.conv3_skip.weight, seen["z"]))
    layer = network.convolutions[2]
    rows = GradientConstraint(delta[0].numpy(), layer.projection)
    np.testing.assert_allclose(rows.apply(seen["x"].detach().numpy().ravel()), ours.ravel())
    assert analyse(network)[2].weights == 3 * 3 * 9 + rows.shape[0] == 81 + ours.numel()


@pytest.mark.parametrize("stride", [1, 2])
def test_gradient_of_a_projection_over_one_layer_adds_nothing(stride):
    network = chain(same(3, stride=stride), end(4, 1, stride=stride), side=8, classes=1)
    layer = network.convolutions[1]
    delta = np.random.default_rng(0).normal(size=(4, *layer.shape.output))
    own, more = (GradientConstraint(delta, s).dense() for s in (layer.shape, layer.projection))
    assert more.any()
    assert np.linalg.matrix_rank(np.vstack([own, more])) == np.linalg.matrix_rank(own)
    assert analyse(network)[1].weights == len(own)


def test_layers_alone_forget_what_comes_from_before_their_skips():
    layers = [same(9), same(4), end(5, 2), same(4, stride=2), same(9), end(3, 3), same(2)]
    network = chain(*layers, side=8, channels=3, classes=2)
    rows = analyse(network)
    plain = [rows[0], rows[1], rows[3], *rows[6:]]
    assert all(row.alone == row.local for row in plain) and all(row.virtual for row in plain[1:])
    # R-GAP, appendix D, with the projection's gradient: |x_1| - |W_2| - |P| - |f|.
    assert rows[2].alone == 9 * 64 - 5 * 4 * 9 - 5 * 9 - 5 * 64
    # A block on its own has no layer before it to leave anything over.
    block = chain(*layers[3:7], side=8, channels=5, classes=2)
    assert [row.alone for row in rows[3:7]] == [row.index for row in analyse(block)[:4]]
    assert largest_alone(rows) is max(rows, key=lambda row: row.local - row.virtual_inside)
    # Overlapping skips count as one block.
    body = [same(2), same(3), end(4, 3), end(3, 3)]
    rows = analyse(chain(same(6), *body, side=6, channels=2, classes=1))
    alone = analyse(chain(*body, side=6, channels=6, classes=1))
    assert [row.alone for row in rows[1:5]] == [row.index for row in alone[:4]]
    assert rows[1].virtual == 4 * 36


def test_blocks_of_two_and_three_layers_follow_the_closed_formulas():
    wide, narrow = conv(6, 3, padding=1), conv(1, 3, padding=1)
    network = binary(wide, narrow, replace(wide, skip=2))
    x1, w2, f, v1 = 6 * 1024, 6 * 9, 6 * 1024, 3072
    assert analyse(network)[2].index == x1 - w2 - f - v1 == network_index(network) == -3126
    assert network_index(binary(wide, narrow, wide)) == 6144 - 54 - 1024 - 3072 == 1994
    # Over three layers with the narrow one in the middle, its own gradient helps as well.
    three = analyse(binary(wide, wide, narrow, replace(wide, skip=3)))
    assert three[3].index == x1 - f - 54 - 54 - v1
    assert network_index(binary(wide, wide, narrow, wide)) == 1994


MEASURED = {
    "full": binary(conv(6, 3, padding=1), conv(30, 3, 2, 1), side=8),
    "deficient": binary(conv(2, 3), conv(1, 3, 2), side=9),
}


@pytest.mark.parametrize("network", MEASURED.values(), ids=MEASURED.keys())
def test_ranks_and_conditions_against_dense_matrices(network):
    weights, x = initial_weights(network, 3), image(network)
    found = measured(network, weights, x, -1, loss="logistic")
    delta = deltas(network, weights, x, -1, "logistic")
    for layer in network.convolutions:
        system = layer_system(layer, weights, delta)
        facts, matrix = found[layer.name], system.dense()
        rows = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        rank = np.linalg.matrix_rank(rows, tol=1e-9)
        assert (facts.rank, facts.inputs) == (rank, layer.shape.unknowns)
        block = system.gradient.block.reshape(-1, facts.pixels)
        assert facts.rank_gradient == np.linalg.matrix_rank(block / np.abs(block).max(), tol=1e-10)
        alone = np.linalg.matrix_rank(system.gradient.dense()) == layer.shape.unknowns
        assert facts.gradient_alone == alone
        if rank == layer.shape.unknowns:
            assert facts.condition == pytest.approx(np.linalg.cond(matrix), rel=2e-3)
            padded = np.linalg.cond(padded_oracle(system))
            assert facts.condition_padding == pytest.approx(padded, rel=2e-3)
    alone = [facts.gradient_alone for facts in found.values()]
    assert alone == [False, network is MEASURED["full"]]
    none = GradientConstraint(np.zeros((6, 8, 8)), MEASURED["full"].convolutions[0].shape)
    assert gradient_rank(none) == 0


def test_notes_say_what_the_numbers_leave_out():
    first = conv(3, 3, 1, 1, activation="relu")
    network = binary(first, conv(3, 3, 1, 1), conv(3, 3, 1, 1, skip=2), side=6)
    rows = analyse(network)
    assert "ReLU" in rows[0].note and rows[2].note == "a skip over 2 ends here"
    found = measured(network, initial_weights(network, 0), image(network), 1, loss="logistic")
    assert [facts.note for facts in found.values()] == ["", *["U ignores the skip"] * 2]
    assert "9 inputs meet no window" in analyse(binary(conv(1, 2, 2), side=5, channels=1))[0].note


LOST = (32, {"conv1.weight": 1e-12}, "lost in rounding")
ZERO = (4, {"conv1.weight": 0, "fc1.weight": 0}, "U is 0")


@pytest.mark.parametrize(("side", "factors", "why"), [LOST, ZERO])
def test_a_condition_number_that_there_is_not_is_a_note(side, factors, why):
    network = chain(conv(3, 1, activation="identity"), side=side, channels=3, last="identity")
    weights = {name: factors.get(name, 1) * w for name, w in initial_weights(network, 0).items()}
    facts = measured(network, weights, image(network), 1)["conv1"]
    assert np.isnan([facts.condition, facts.condition_padding]).all()
    assert facts.note.count(why) == 1


TARGETS = target_set(2, shape=(2, 8, 8), first=7)


def models(*chains, seeds=2):
    return ModelFile(chains, family_weights(chains, seeds))


def test_table_has_counts_everywhere_and_ranks_at_the_first_image():
    network = binary(conv(3, 3), conv(4, 3), side=8, channels=2)
    options = {"labels": "opposite", "loss": "logistic", "seeds": 2, "images": 2}
    found = table(models(network), TARGETS, **options)
    assert (found["network_ra_alone"] == largest_alone(analyse(network)).alone).all()
    assert (found["ra_alone"] == found["unknowns"] - found["weights"] - found["outputs"]).all()
    assert list(found.columns) == COLUMNS and len(found) == 2 * (3 + 2)
    assert found[["unknowns", "ra"]].notna().all(axis=None)
    assert (found["network_ra"] == network_index(network)).all()
    convolutions = found[found["layer"] != "fc1"]
    assert convolutions["condition"].notna().all()
    assert (convolutions["rank"].notna() == (convolutions["index"] == 7)).all()
    assert (found[found["layer"] == "fc1"]["index"] == 7).all()
    first, second = (convolutions[convolutions["index"] == i]["condition"] for i in (7, 8))
    assert not np.allclose(first, second)
    options = {"labels": "same", "loss": "logistic", "seeds": 1, "conditions": False}
    counts = table(models(network), TARGETS, **options)
    assert counts["condition"].isna().all() and len(counts) == 3


NORM, POOL = conv(3, 3, norm="batch"), conv(3, 3, padding=1, pool="max3")
REFUSED = {
    "norm: batch": [NORM, conv(3, 3)],
    "projection: true": [conv(3, 3), end(4, 1)],
    "pool: global": [conv(3, 3, pool="global")],
    "norm: batch, projection: true, pool: max3": [POOL, end(4, 1), NORM],
}


@pytest.mark.parametrize(("keys", "layers"), REFUSED.items(), ids=REFUSED.keys())
def test_where_no_pass_is_known_there_are_counts_alone(keys, layers):
    network = chain(*layers, classes=1)
    found = table(models(network), TARGETS, labels="opposite", loss="logistic", seeds=2)
    assert found["ra_alone"].to_list() == [row.alone for row in analyse(network)] * 2
    convolutions = found[found["layer"] != "fc1"]
    assert convolutions[["rank", "rank_gradient", "condition"]].isna().all(axis=None)
    assert convolutions["inputs"].to_list() == convolutions["unknowns"].to_list()
    said = f"ranks are not measured of a network with {keys}"
    assert convolutions["note"].str.endswith(said).all()
    weights, x = initial_weights(network, 0), image(network)
    said = f"models.small: a single image cannot be analysed with {keys}; choose a model without."
    calls = [
        lambda: forward(network, weights, x),
        lambda: fc_input(network, weights, x),
        lambda: deltas(network, weights, x, 1, "logistic"),
        lambda: weight_gradients(network, weights, x, 1, "logistic"),
        lambda: margin_label(network, weights, x, "same"),
        lambda: index_table(models(network, seeds=1), TARGETS, seeds=1),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
            call()


def test_table_of_a_residual_network():
    network = Chain("resnet18", (3, 32, 32), specs("resnet18", 16, 10))
    chosen = target_set(1, shape=(3, 32, 32))
    found = table(models(network, seeds=1), chosen, labels="dataset", loss="cross_entropy", seeds=1)
    assert len(found) == 18
    assert set(found["network_ra"]) == {-13744} and set(found["network_ra_alone"]) == {-1162}
    assert "a skip over 2 with a projection ends here" in found["note"][6]
    assert "each 0 of the ReLU" in found["note"][0]


def test_labels_of_one_output_follow_its_sign():
    network = binary(conv(3, 3), side=8, channels=2)
    for seed in range(4):
        weights, x = initial_weights(network, seed), image(network, seed)
        own = 1 if forward(network, weights, x)[0] >= 0 else -1
        assert margin_label(network, weights, x, "same") == own
        assert margin_label(network, weights, x, "opposite") == -own


UNFIT = [
    (1, 2, {}, "2 images share a gradient"),
    (1, 1, {"images": 5}, "wanted at 5 images and there are 2"),
    (4, 1, {}, "small: the logistic loss takes one output, but the network has 4"),
    (1, 1, {"loss": "huber"}, "the loss 'huber' is not known"),
]


@pytest.mark.parametrize(("classes", "batch", "changed", "words"), UNFIT)
def test_refusals_name_what_is_wrong(classes, batch, changed, words):
    network = chain(conv(3, 3), classes=classes)
    options = {"labels": "same", "loss": "logistic", "seeds": 1}
    with refused(words, kind=NotApplicable):
        table(models(network), target_set(2, batch, (2, 8, 8)), **(options | changed))
