"""Rank analysis: counts against hand counts, skips against equivalent matrices, ranks dense."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chains import chain, conv, image
from gradleak.errors import ConfigError, NotApplicable
from gradleak.models.build import load
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.files import ModelFile
from gradleak.models.initial import family_weights, initial_weights
from gradleak.models.passes import deltas, fc_input, forward, margin_label, weight_gradients
from gradleak.operators.gradient import GradientConstraint
from gradleak.rank_analysis import analyse, critical, network_index
from gradleak.rank_table import COLUMNS, gradient_rank, label_for, measured, table
from gradleak.security import index_table, layer_system
from gradleak.targets import TargetSet


def skip(layers, *args, **kwargs):
    return replace(conv(*args, **kwargs), skip=layers)


def binary(*convolutions, side=32, channels=3, **kwargs):
    return chain(*convolutions, side=side, channels=channels, classes=1, bias=False, **kwargs)


# R-GAP Figure 2 and Table 3, in the order of the paper.
FIGURE_2 = [
    (binary(conv(12, 3), conv(4, 2)), -484, "conv2"),
    (binary(conv(3, 4), conv(4, 3)), 405, "conv1"),
    (binary(conv(3, 4), conv(12, 3), conv(12, 3, stride=2)), 405, "conv1"),
    (binary(conv(9, 4), conv(4, 4)), -208, "conv2"),
    (binary(conv(4, 5), conv(4, 4)), 316, "conv2"),
]


@pytest.mark.parametrize(("network", "expected", "layer"), FIGURE_2)
def test_the_five_networks_of_figure_2_with_either_count_of_virtual_constraints(
    network, expected, layer
):
    rows = analyse(network)
    assert network_index(network) == expected
    assert max(row.index_printed for row in rows) == expected
    assert critical(rows).layer == layer


def test_first_layer_of_3_to_4_filters_has_minus_484_too():
    network = binary(conv(4, 4), conv(8, 3))
    assert [row.index for row in analyse(network)] == [
        3072 - 192 - 3364,
        3364 - 288 - 5832 - 292,
        5832 - 5832 - 1 - (292 + 2468),
    ]


def test_counts_by_hand():
    rows = analyse(binary(conv(9, 4), conv(4, 4)))
    found = [(r.unknowns, r.weights, r.outputs, r.virtual, r.index) for r in rows]
    assert found == [
        (3072, 432, 7569, 0, -4929),
        (7569, 576, 2704, 4497, -208),
        (2704, 2704, 1, 208, -209),
    ]


def test_two_deficient_layers_in_a_row_are_where_the_counts_differ():
    first, second, _ = analyse(binary(conv(1, 2), conv(1, 8, stride=8)))
    assert (first.index, first.index_printed) == (2099, 2099)
    assert (second.virtual, second.virtual_printed) == (0, -2099)
    assert second.index == 961 - 64 - 9
    assert second.index_printed == 961 - 64 - 9 + 2099


def test_biases_and_padding_do_not_count():
    plain, biased = (binary(conv(4, 3, bias=b), conv(4, 3), side=9) for b in (False, True))
    assert [r.index for r in analyse(plain)] == [r.index for r in analyse(biased)]
    padded = analyse(binary(conv(4, 3, padding=1), side=8, channels=2))[0]
    assert padded.index == 2 * 64 - 4 * 2 * 9 - 4 * 64


LAYERS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 3), st.integers(1, 2), st.integers(0, 1)),
    min_size=1,
    max_size=4,
)


def drawn(layers):
    network = binary(*[conv(f, k, s, p) for f, k, s, p in layers], side=12, channels=2)
    try:
        _ = network.layers
    except ConfigError:
        assume(False)
    return network


@given(LAYERS)
@settings(max_examples=60, deadline=None)
def test_both_counts_agree_on_the_first_deficient_layer_and_on_the_sign(layers):
    rows = analyse(drawn(layers))
    index, printed = max(r.index for r in rows), max(r.index_printed for r in rows)
    assert (index > 0) == (printed > 0)
    assert all(row.virtual >= row.virtual_printed for row in rows)
    for row in rows:
        assert row.index == row.index_printed
        if row.index > 0:
            break
    else:
        assert index == printed


@given(LAYERS, st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_a_layer_behind_changes_nothing_before_it(layers, filters):
    network = drawn(layers)
    *specs, last = network.specs
    longer = Chain("longer", network.input, (*specs, conv(filters, 1), last))
    before, after = analyse(network), analyse(longer)
    assert after[: len(specs)] == before[:-1]
    if critical(before).layer.startswith("conv"):
        assert network_index(longer) >= network_index(network)


@given(LAYERS, st.data())
@settings(max_examples=40, deadline=None)
def test_a_skip_over_one_layer_changes_no_count(layers, data):
    network = drawn([*layers, (layers[-1][0], 3, 1, 1)])
    position = data.draw(st.integers(0, len(layers)))
    layer = network.convolutions[position]
    size = (layer.shape.filters, *layer.shape.output)
    assume(size == (layer.shape.channels, *layer.shape.size))
    specs = list(network.specs)
    specs[position] = replace(specs[position], skip=1)
    skipped = Chain("skipped", network.input, tuple(specs))
    plain = [replace(row, note="") for row in analyse(network)]
    assert [replace(row, note="") for row in analyse(skipped)] == plain


def equivalent_matrices(network, weights):
    """W* of every layer (R-GAP eq. 30), by following which inputs still wait for a skip's end."""
    ends = {}
    for end, layer in enumerate(network.convolutions):
        if layer.skip > 1:
            ends.setdefault(end + 1 - layer.skip, []).append(end)
    waiting, out = [], []
    for i, layer in enumerate(network.convolutions):
        zero = np.zeros((*layer.shape.output, layer.shape.filters))
        matrix = layer_system(
            layer, weights, {layer.name: np.moveaxis(zero, -1, 0)}
        ).convolution.dense()
        if layer.skip == 1:
            matrix = matrix + np.eye(len(matrix))
        inputs = [matrix.shape[1], *(size for _, size in waiting)]
        top = [matrix] + [np.zeros((len(matrix), size)) for size in inputs[1:]]
        if layer.skip > 1:
            place = [start for start, _ in waiting].index(i + 1 - layer.skip)
            top[1 + place] = np.eye(len(matrix))
        rows, kept = [np.hstack(top)], []
        here = ([(i, inputs[0])] if any(e > i for e in ends.get(i, [])) else []) + waiting
        for start, size in here:
            if any(end > i for end in ends[start]):
                kept.append((start, size))
                place = 0 if start == i else 1 + [s for s, _ in waiting].index(start)
                blocks = [np.zeros((size, n)) for n in inputs]
                blocks[place] = np.eye(size)
                rows.append(np.hstack(blocks))
        waiting = kept
        out.append(np.vstack(rows))
    return out


def same(filters=2, over=0, kernel=3):
    return skip(over, filters, kernel, padding=1, activation="identity")


SKIPS = {
    "two": [same(), same(), same(over=2)],
    "bottleneck": [same(), same(1), same(over=2)],
    "three": [same(3), same(1), same(2), same(3, over=3)],
    "consecutive": [same(), same(4), same(over=2), same(1), same(over=2)],
    "nested": [same(), same(), same(over=2), same(over=4)],
    "common start": [same(), same(over=2), same(over=3)],
    "overlapping": [same(), same(), same(over=3), same(over=3)],
    "with one": [same(), same(over=1), same(over=2)],
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
    np.testing.assert_allclose(product, fc_input(network, weights, x), atol=1e-12)
    rows = analyse(network)[: len(matrices)]
    assert [(r.outputs, r.unknowns) for r in rows] == [m.shape for m in matrices]


def test_blocks_of_two_and_three_layers_follow_the_closed_formulas():
    network = binary(*[conv(f, 3, padding=1) for f in (6, 1)], skip(2, 6, 3, padding=1))
    x1, w2, f, v1 = 6 * 1024, 6 * 9, 6 * 1024, 3072
    assert analyse(network)[2].index == x1 - w2 - f - v1
    assert network_index(network) == -3126
    without = binary(*[conv(f, 3, padding=1) for f in (6, 1, 6)])
    assert network_index(without) == 6144 - 54 - 1024 - 3072 == 1994
    # Over three layers with the narrow one in the middle, its own gradient helps as well.
    wide, narrow = conv(6, 3, padding=1), conv(1, 3, padding=1)
    three = analyse(binary(wide, wide, narrow, skip(3, 6, 3, padding=1)))
    w3, w4 = 54, 54
    assert three[3].index == x1 - f - w3 - w4 - v1
    assert network_index(binary(wide, wide, narrow, wide)) == 1994


# Passes


PASSES = {
    "skips": (SKIPS["overlapping"], "logistic", -1, 1),
    "tanh": ([conv(3, 3, padding=1, bias=True), skip(1, 3, 3, padding=1)], "exponential", 1, 1),
    "classes": ([conv(3, 3), conv(4, 2), skip(1, 4, 1)], "cross_entropy", 2, 4),
    "block": ([conv(3, 3, 1, 1), conv(1, 3, 1, 1), skip(2, 3, 3, padding=1)], "hinge", 1, 1),
}


@pytest.mark.parametrize(("layers", "loss", "label", "classes"), PASSES.values(), ids=PASSES.keys())
def test_passes_match_pytorch_with_skips_and_losses(layers, loss, label, classes):
    network = chain(*layers, side=6, channels=2, classes=classes, last="identity")
    weights, x = initial_weights(network, 0), image(network)
    module = load(network, weights, torch.float64)
    z = {}
    for layer in network.convolutions:
        module.get_submodule(layer.name).register_forward_hook(
            lambda _m, _i, output, name=layer.name: z.update({name: output})
        )
    output = module(torch.from_numpy(x)[None])
    value = {
        "cross_entropy": lambda: torch.nn.functional.cross_entropy(output, torch.tensor([label])),
        "logistic": lambda: torch.nn.functional.softplus(-label * output[0, 0]),
        "exponential": lambda: torch.exp(-label * output[0, 0]),
        "hinge": lambda: torch.relu(1 - label * output[0, 0]),
    }[loss]()
    np.testing.assert_allclose(forward(network, weights, x), output[0].detach(), atol=1e-12)
    ours = deltas(network, weights, x, label, loss)
    for name, tensor in z.items():
        (truth,) = torch.autograd.grad(value, tensor, retain_graph=True)
        assert ours[name].any()
        np.testing.assert_allclose(ours[name], truth[0].numpy(), atol=1e-12)


# Measured ranks


def dense_facts(system):
    matrix = system.dense()
    rows = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.linalg.matrix_rank(rows, tol=1e-9), np.linalg.cond(matrix)


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
        rank, condition = dense_facts(system)
        facts = found[layer.name]
        assert (facts.rank, facts.inputs) == (rank, layer.shape.unknowns)
        block = system.gradient.block.reshape(-1, facts.pixels)
        assert facts.rank_gradient == np.linalg.matrix_rank(block / np.abs(block).max(), tol=1e-10)
        assert facts.gradient_alone == (
            np.linalg.matrix_rank(system.gradient.dense()) == layer.shape.unknowns
        )
        if rank == layer.shape.unknowns:
            assert facts.condition == pytest.approx(condition, rel=2e-3)
            padded = np.linalg.cond(_with_padding(layer, weights, delta))
            assert facts.condition_padding == pytest.approx(padded, rel=2e-3)


def _with_padding(layer, weights, delta):
    """U with the padding as unknowns, and a row for each padded pixel."""
    (down, across), (height, width) = layer.shape.padding, layer.shape.size
    wide = replace(
        layer,
        shape=replace(layer.shape, padding=(0, 0), size=(height + 2 * down, width + 2 * across)),
    )
    inside = np.zeros((layer.shape.channels, *wide.shape.size), dtype=bool)
    inside[:, down : down + height, across : across + width] = True
    system = layer_system(wide, weights, delta).dense()
    return np.vstack([system, np.eye(inside.size)[~inside.ravel()]])


def test_gradient_alone_gives_the_input_where_filters_are_many():
    found = measured(
        MEASURED["full"],
        initial_weights(MEASURED["full"], 0),
        image(MEASURED["full"]),
        1,
        loss="logistic",
    )
    assert [facts.gradient_alone for facts in found.values()] == [False, True]
    shape = MEASURED["full"].convolutions[0].shape
    assert gradient_rank(GradientConstraint(np.zeros((6, 8, 8)), shape)) == 0


def test_notes_say_what_the_numbers_leave_out():
    network = binary(
        conv(3, 3, 1, 1, activation="relu"), conv(3, 3, 1, 1), skip(2, 3, 3, padding=1), side=6
    )
    rows = analyse(network)
    assert "ReLU" in rows[0].note
    assert rows[2].note == "a skip over 2 ends here"
    found = measured(network, initial_weights(network, 0), image(network), 1, loss="logistic")
    assert [facts.note for facts in found.values()] == ["", *["U ignores the skip"] * 2]
    assert "9 inputs meet no window" in analyse(binary(conv(1, 2, 2), side=5, channels=1))[0].note


# Table


def targets(count=2, batch=1):
    rng = np.random.default_rng(0)
    size = (count, batch)
    return TargetSet(
        rng.integers(0, 256, (*size, 2, 8, 8), dtype=np.uint8),
        rng.integers(0, 4, size),
        np.arange(count * batch).reshape(size) + 7,
        0.0,
        tuple(f"image {i}" for i in range(count)),
        {},
        {},
    )


def models(*chains, seeds=2):
    return ModelFile(chains, family_weights(chains, seeds))


def test_table_has_counts_everywhere_and_ranks_at_the_first_image():
    network = binary(conv(3, 3), conv(4, 3), side=8, channels=2)
    found = table(models(network), targets(), labels="opposite", loss="logistic", seeds=2, images=2)
    assert list(found.columns) == COLUMNS
    assert len(found) == 2 * (3 + 2)
    assert found["unknowns"].notna().all() and found["ra"].notna().all()
    assert (found["network_ra"] == network_index(network)).all()
    convolutions = found[found["layer"] != "fc1"]
    assert convolutions["condition"].notna().all()
    assert (convolutions["rank"].notna() == (convolutions["index"] == 7)).all()
    assert (found[found["layer"] == "fc1"]["index"] == 7).all()
    first, second = (convolutions[convolutions["index"] == i]["condition"] for i in (7, 8))
    assert not np.allclose(first, second)
    counts = table(
        models(network), targets(), labels="same", loss="logistic", seeds=1, conditions=False
    )
    assert counts["condition"].isna().all() and len(counts) == 3


REFUSED = {
    "norm: batch": [conv(3, 3, norm="batch"), conv(3, 3)],
    "projection: true": [conv(3, 3), conv(4, 3, padding=1, skip=1, projection=True)],
    "pool: global": [conv(3, 3, pool="global")],
    "pool: max3": [conv(3, 3, padding=1, pool="max3")],
    "norm: batch, projection: true, pool: max3": [
        conv(3, 3, padding=1, pool="max3"),
        conv(4, 3, padding=1, skip=1, projection=True),
        conv(3, 3, norm="batch"),
    ],
}


@pytest.mark.parametrize(("keys", "layers"), REFUSED.items(), ids=REFUSED.keys())
def test_single_image_passes_refuse_what_they_do_not_know(keys, layers):
    network = chain(*layers, classes=1)
    weights, x = initial_weights(network, 0), image(network)
    said = f"models.small: a single image cannot be analysed with {keys}; choose a model without."
    calls = [
        lambda: forward(network, weights, x),
        lambda: fc_input(network, weights, x),
        lambda: deltas(network, weights, x, 1, "logistic"),
        lambda: weight_gradients(network, weights, x, 1, "logistic"),
        lambda: margin_label(network, weights, x, "same"),
        lambda: index_table(models(network, seeds=1), targets(), seeds=1),
    ]
    for call in calls:
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value) == said


def test_labels_of_one_output_follow_its_sign():
    network = binary(conv(3, 3), side=8, channels=2)
    for seed in range(4):
        weights, x = initial_weights(network, seed), image(network, seed)
        own = 1 if forward(network, weights, x)[0] >= 0 else -1
        assert label_for(network, weights, x, "same", 3) == own
        assert label_for(network, weights, x, "opposite", 3) == -own
        assert label_for(network, weights, x, "dataset", 3) == 3


def test_refusals_name_what_is_wrong():
    network = binary(conv(3, 3), side=8, channels=2)
    options = {"labels": "same", "loss": "logistic", "seeds": 1}
    with pytest.raises(NotApplicable, match="2 images share a gradient"):
        table(models(network), targets(batch=2), **options)
    with pytest.raises(NotApplicable, match="wanted at 5 images and there are 2"):
        table(models(network), targets(), **options, images=5)
    with pytest.raises(NotApplicable, match=r"small: the logistic loss takes one output.*has 4"):
        table(models(chain(conv(3, 3))), targets(), **options)
    with pytest.raises(NotApplicable, match="the loss 'huber' is not known"):
        table(models(network), targets(), **(options | {"loss": "huber"}))

    class Pooling:
        name = "pool1"
        activation = network.layers[0].activation

    odd = Chain("odd", (2, 8, 8), (LinearSpec(1),))
    object.__setattr__(odd, "layers", (Pooling(),))
    with pytest.raises(NotApplicable, match=r"odd: the rank analysis does not know.*'Pooling'"):
        analyse(odd)
