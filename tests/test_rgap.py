"""R-GAP from losses of one output: answers, twins, failures, bad input; Phong's attack."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import dense
from chains import chain, conv, convolutional, error, fully_connected, image, net, seen, view
from gradleak.attacks.closed_form.fully_connected import beginnings, disagreements, last_layer
from gradleak.attacks.closed_form.layerwise import ConvolutionCache, walk
from gradleak.attacks.closed_form.phong import Phong
from gradleak.attacks.closed_form.rgap import RGap, minimum_norm
from gradleak.attacks.runner import attack_all
from gradleak.client.defences.gaussian_noise import GaussianNoise
from gradleak.errors import NumericsError
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.chain import LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.models.numpy_autodiff import forward
from gradleak.runtime.artifacts import write_tensors

BIAS = pytest.mark.parametrize("bias", [False, True])
SIDES = pytest.mark.parametrize("side", ["opposite", "same"])


def solved(given, target, atol):
    """R-GAP's answer, whose image is the target."""
    found = RGap().run(given, 0)
    np.testing.assert_allclose(found.image, target, atol=atol)
    return found


@SIDES
@pytest.mark.parametrize("loss", ["logistic", "exponential", "hinge"])
@pytest.mark.parametrize("activation", ["leaky_relu", "sigmoid", "relu"])
@BIAS
def test_convolutions_give_image_and_label(activation, bias, loss, side):
    network = convolutional(activation, bias)
    given, target, label = seen(network, loss, side, granted=False)
    found = solved(given, target, 1e-9)
    assert found.label == label and found.images.shape == (1, *network.input)


@SIDES
@pytest.mark.parametrize("activation", ["identity", "leaky_relu", "sigmoid", "tanh", "relu"])
@BIAS
def test_fully_connected_layers_give_the_image(activation, bias, side):
    network = fully_connected(50, 20, activation=activation, bias=bias)
    for precision, most in (("float64", 1e-10), ("float32", 1e-4)):
        solved(*seen(network, side=side, precision=precision)[:2], most)


def test_balanced_rows_make_up_for_float32_gradients():
    network = convolutional("leaky_relu", filters=(9, 9, 12))
    given, target, _ = seen(network, precision="float32")
    plain, balanced = (error(RGap(rows=r).run(given, 0), target) for r in ("plain", "balanced"))
    assert balanced < 1e-11 and 10 * balanced < plain
    exact, target, _ = seen(network)
    np.testing.assert_allclose(RGap(rows="balanced").run(exact, 0).image, target, atol=1e-10)


@pytest.mark.parametrize("activation", ["leaky_relu", "sigmoid"])
def test_single_precision_is_that_of_numpys_least_squares(activation):
    """Data in float32, each least-squares problem in float64, as in the authors' code."""
    given, target, _ = seen(convolutional(activation), precision="float32")
    single = RGap(precision="float32").run(given, 0).image
    np.testing.assert_array_equal(single, single.astype(np.float32))
    np.testing.assert_allclose(single, dense.rgap_single(given), atol=1e-5)
    exact, target, _ = seen(convolutional(activation))
    errors = [error(RGap(precision=each).run(exact, 0), target) for each in ("float32", "float64")]
    assert 1e3 * errors[1] < errors[0] < 1e-5


@pytest.mark.parametrize("activation", ["leaky_relu", "relu", "identity"])
def test_twin_is_a_multiple_and_equals_a_second_walk(activation):
    given, target, label = seen(convolutional(activation), side="same")
    found = solved(given, target, 1e-9)
    (twin,) = found.others
    assert (found.kind, twin.kind, twin.label) == ("answer", "twin", label)
    factor = twin.image.ravel() @ target.ravel() / np.sum(target**2)
    assert factor > 10  # an untrained network has a small μ, so the other one is large
    np.testing.assert_allclose(twin.image, factor * target, atol=1e-8 * factor)
    # Both answers without the short cut for homogeneous networks.
    second = walk(given, ConvolutionCache(), minimum_norm, linear=False)
    np.testing.assert_allclose(second.others[0].image, twin.image, rtol=1e-7)
    np.testing.assert_allclose(second.others[0].fc_input, twin.fc_input, rtol=1e-9)
    # They are twins: the same gradient.
    other = view(given.chain, twin.image, label, loss="logistic", low=0.0)
    for name, value in given.gradients.items():
        np.testing.assert_allclose(other.gradients[name], value, atol=1e-9 * np.abs(value).max())


def test_the_twin_with_more_contrast_is_chosen_where_both_lie_in_range():
    network = fully_connected(50, 20)
    weights = initial_weights(network, 0)
    # Scaled so that μ is 5 for the image: its twin is a faint copy of it.
    mu = forward(network, weights, image(network, 0, 0.0))[0]
    scaled = {**weights, "fc3.weight": (weights["fc3.weight"] * abs(5 / mu)).astype(np.float32)}
    found = solved(*seen(network, side="same", weights=scaled)[:2], 1e-6)
    assert found.stop.endswith("2 answers fit")
    assert 0 < found.others[0].image.max() < 0.05


def test_layers_with_biases_refute_the_second_root():
    given, target, _ = seen(convolutional("leaky_relu", bias=True), side="same")
    assert solved(given, target, 1e-9).others == ()
    # Behind a ReLU only a second walk can tell.
    given, target, _ = seen(convolutional("relu", bias=True), side="same")
    assert "fits the layers better" in solved(given, target, 1e-9).others[0].failure


def test_layer_identity_holds_for_the_truth_only():
    for network in (convolutional("sigmoid", bias=True), fully_connected(30, 20, bias=False)):
        given, _, _ = seen(network)
        (begin,) = beginnings(given, given.weights, given.gradients)
        wrong = replace(begin, x=-begin.x, delta=-begin.delta)
        misfits = disagreements(network, given.weights, given.gradients, [begin, wrong])
        assert misfits[0] < 1e-6 < 0.1 < misfits[1]


def test_an_odd_network_leaves_the_label_to_the_images():
    network = fully_connected(50, 20, activation="tanh")
    given, target, label = seen(network, granted=False)
    found = solved(given, target, 1e-10)
    assert found.label == label and [one.label for one in found.others] == [-label]
    # In a range that is symmetric about 0 nothing decides, which is said.
    given, target, _ = seen(network, granted=False, low=-0.5)
    found = RGap().run(given, 0)
    assert found.stop.endswith("2 answers fit")
    assert min(np.abs(one.image - target).max() for one in (found, *found.others)) < 1e-10


def test_two_classes_without_a_bias_have_two_answers():
    network = chain(conv(6, 3, activation="leaky_relu"), classes=2, bias=False, last="identity")
    target = image(network)
    own = int(np.argmax(forward(network, initial_weights(network, 0), target)))
    for label, kinds in ((own, ["twin"]), (1 - own, [])):
        found = solved(view(network, target, label), target, 1e-8)
        assert [one.kind for one in found.others] == kinds


def test_close_scales_of_a_last_layer_are_told_apart():
    # p = 1/(1 + e^(t·g)) per unit of t·g: t·p is largest at t·g = 1.278, where its two roots meet.
    weight = np.array([[1.0, 0.5], [0.0, 0.0]])
    for size in (1.27, 1.2784, 1.29, 3.0):
        x = np.array([size, 0.0])
        exponent = np.exp(weight @ x)
        gradient = np.outer(exponent / exponent.sum() - np.array([1.0, 0.0]), x)
        found = last_layer(weight, gradient, None, Activation("identity"), 0)
        assert min(abs(one.x[0] - size) for one in found) < 1e-4 * size
        assert len(found) == (1 if size == 1.2784 else 2)
        for one in found:
            np.testing.assert_allclose(np.outer(one.delta, one.x), gradient, atol=1e-6)


def test_a_layer_solved_only_in_part_says_so():
    layer = conv(2, 4, stride=2, activation="leaky_relu")
    given, target, _ = seen(net(layer, LinearSpec(1, False), size=(3, 10, 10)))
    found = RGap().run(given, 0)
    facts = found.layers[-1]
    assert facts.free == 300 - 128 + 4 and error(found, target) > 1e-3
    assert found.stop.endswith(f"conv1 leaves at least {facts.free} unknowns free")
    # Values beyond a Sigmoid are clipped and counted.
    layers = [conv(12, 3, activation="sigmoid"), conv(2, 4, stride=2, activation="leaky_relu")]
    given, _, _ = seen(chain(*layers, classes=1, bias=False, last="identity"))
    found = RGap().run(given, 0)
    # conv2's input, solved only in part, is far from the Sigmoid values that it was.
    facts = found.layers[-2]
    assert facts.free > 0 and facts.clipped > 0
    assert f"conv2: {facts.stop}" in found.stop
    # That is what the answer says of itself; it is no failure.
    assert found.layers[-1].residual > RGap().failure_residual and not found.failure
    assert np.all(np.isfinite(found.image))


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("labels", ["same", "mixed"])
def test_a_batch_gives_a_linear_combination(count, labels):
    network = fully_connected(60, 20)
    images = np.stack([image(network, k, 0.0) for k in range(count)])
    y = np.where(np.arange(count) % 2, 1, -1) if labels == "mixed" else np.ones(count, int)
    given = view(network, images, y, loss="logistic", low=0.0)
    found = RGap().run(given, 0)
    assert found.images.shape == (1, *network.input)
    basis = images.reshape(count, -1).T
    weights = np.linalg.lstsq(basis, found.image.ravel(), rcond=None)[0]
    np.testing.assert_allclose(basis @ weights, found.image.ravel(), atol=1e-9)
    if labels == "same":
        assert found.label == 1
        return
    # Behind LeakyReLU the larger side of x = ∇w / (y·ℓ') is the positive one.
    x = -found.label * given.gradients["fc3.weight"]
    assert np.linalg.norm(np.maximum(x, 0)) > np.linalg.norm(np.minimum(x, 0))
    assert found.fc_input.max() > 0
    if count == 5:
        # Such an image contradicts the equations, which is no failure.
        assert found.layers[-1].residual > RGap().failure_residual and not found.failure


CNN6 = [(12, 4, 2, 2), (36, 3, 2, 1), *2 * [(36, 3, 1, 1)], (64, 3, 2, 1), (128, 3, 1, 1)]
CNN6 = [conv(*sizes, activation="leaky_relu", slope=0.2) for sizes in CNN6]
LARGE = {
    "FCN3, not scaled": (fully_connected(1000, 100, side=28), "plain", 1e-12),
    "CNN6": (net(*CNN6, LinearSpec(1, False), size=(3, 32, 32)), "balanced", 1e-9),
}


@pytest.mark.parametrize(("network", "rows", "limit"), LARGE.values(), ids=LARGE.keys())
def test_large_networks_from_float32_gradients(network, rows, limit):
    given, target, label = seen(network, granted=False, precision="float32")
    found = RGap(rows=rows).run(given, 0)
    assert found.label == label and error(found, target) < limit


def test_phong_averages_rows_that_are_not_zero():
    network = fully_connected(60, activation="relu", bias=True)
    given, target, _ = seen(network, granted=False)
    for rows in ("average", "weighted"):
        attack = Phong(rows=rows)
        assert attack.applies(network) is None
        found = attack.run(given, 0)
        np.testing.assert_allclose(found.image, target, atol=1e-10)
        used = np.count_nonzero(given.gradients["fc1.bias"])
        assert used < 60 and f"{used} of 60 rows, spread" in found.stop
    rng, noisy = np.random.default_rng(0), {}
    for name, value in given.gradients.items():
        noisy[name] = value + 1e-3 * np.abs(value).max() * rng.standard_normal(value.shape)
    given = replace(given, gradients=noisy)
    mean, weighted = (error(Phong(rows=r).run(given, 0), target) for r in ("average", "weighted"))
    assert weighted < mean
    # It says what it needs.
    assert "conv1 is a convolution" in Phong().applies(convolutional("relu"))
    assert "fc1 has no bias" in Phong().applies(fully_connected(20))
    zero = {name: 0 * value for name, value in given.gradients.items()}
    with pytest.raises(NumericsError, match="bias gradient of fc1 is zero"):
        Phong().run(replace(given, gradients=zero), 0)


@pytest.fixture
def row_of(tmp_path):
    """R-GAP's record of one image, through the files of the pipeline, its answer, and the image."""
    paths = [str(tmp_path / f"{name}.safetensors") for name in ("model", "gradient")]
    metadata = {"loss": "logistic", "seeds": 1, "images": 1, "batch": 1, "low": 0.0, "high": 1.0}

    def attack(network, gain=1.0, change=None, rows="plain", level=0.0, label=None):
        weights = {k: (gain * v).astype(np.float32) for k, v in initial_weights(network, 0).items()}
        given, target, own = seen(network, weights=weights)
        shared = dict(given.gradients)
        if level:
            shared = GaussianNoise(level=level, relative=True).apply(network, shared, 1)
        shared["label"] = np.array([own if label is None else label])
        if change is not None:
            change(shared)
        stored = {f"{network.name}/{k}": v[None] for k, v in weights.items()}
        files.save(paths[0], [network], stored, {})
        slots = {f"{network.name}/{k}": np.asarray(v)[None, None] for k, v in shared.items()}
        write_tensors(paths[1], slots, metadata)
        found = attack_all(*paths, {"method": "rgap", "rows": rows})
        (row,), images = found.runs, found.images[f"{network.name}/images"]
        assert row["status"] == "ok" or np.isnan(images).all()
        return row, images, target

    return attack


@pytest.mark.parametrize("rows", ["plain", "balanced"])
@BIAS
def test_a_saturated_sigmoid_fails_and_says_where(rows, bias, row_of):
    network = convolutional("sigmoid", bias)
    row, _, _ = row_of(network, 40.0, rows=rows)
    facts = {layer["layer"]: layer for layer in row["layers"]}
    clipped = facts["fc1"]["clipped"]
    assert row["status"] == "failed" and clipped > 100
    assert facts["fc1"]["stop"].endswith(f", {clipped} of 384 values saturated")
    assert all(f"{name}: {facts[name]['stop']}" in row["stop"] for name in ("fc1", "conv2"))
    assert f"{clipped} of 384 values are saturated in the input of fc1" in row["reason"]
    assert "where more than 0.25 counts as failed" in row["reason"]
    # Weights that saturate less leave an answer that is as exact as before.
    row, images, target = row_of(network, 5.0, rows=rows)
    assert row["status"] == "ok" and "saturated" not in row["stop"]
    np.testing.assert_allclose(images[0, 0, 0, 0], target, atol=1e-9)


def test_an_input_mostly_saturated_or_behind_which_all_is_exact_fails(row_of):
    row, _, _ = row_of(convolutional("tanh", True), 40.0)
    assert row["status"] == "failed" and "'tanh'" in row["reason"]
    assert "The input of fc1: 298 of 384 values saturated" in row["reason"]
    layers = [conv(12, 3, activation="sigmoid"), conv(24, 3, activation="leaky_relu", slope=0.2)]
    network = chain(*layers, classes=1, bias=False, last="identity")
    for rows in ("plain", "balanced"):
        row, _, _ = row_of(network, 40.0, rows=rows)
        assert "of 432 values are saturated in the input of conv2" in row["reason"]
        assert "equations of conv1 contradict each other" in row["reason"]


def test_noise_is_no_failure(row_of):
    # It puts values of conv2's input beyond the Sigmoid's range, and conv1 contradicts itself.
    row, _, _ = row_of(convolutional("sigmoid"), 5.0, level=0.01)
    _, second, first = row["layers"]
    assert second["clipped"] > 0.05 * 432
    assert first["residual"] > RGap().failure_residual
    assert row["status"] == "ok" and f"{second['clipped']} of 432 values saturated" in row["stop"]


def test_the_rule_counts_saturation_and_contradiction_together():
    given, _, _ = seen(convolutional("sigmoid"))
    found = RGap().run(given, 0)

    def verdict(clipped, residual, behind=0.0, free=0, batch=1):
        last, second, first = found.layers
        last = replace(last, clipped=clipped, free=free, residual=behind)
        changed = replace(found, layers=(last, second, replace(first, residual=residual)))
        return RGap().failure(changed, replace(given, batch=batch), {})

    assert "conv1 contradict" in verdict(20, 0.3)
    assert verdict(19, 0.3) == verdict(20, 0.2) == ""
    assert verdict(384, 0.9, behind=0.01) == verdict(384, 0.9, free=1) == ""
    assert verdict(384, 0.9, batch=2) == ""


@pytest.mark.parametrize("name", ["conv1.weight", "conv2.bias", "fc1.weight"])
def test_a_zero_or_missing_tensor_is_refused_by_name(name, row_of):
    changes = {
        f"gradient of {name} is zero everywhere": lambda s: s[name].fill(0.0),
        f"gradient of small lacks {name}, and the walk needs every layer's": lambda s: s.pop(name),
    }
    for said, change in changes.items():
        row, _, _ = row_of(convolutional("sigmoid", True), change=change)
        assert row["status"] == "failed" and said in row["reason"]


@pytest.mark.parametrize("label", [0, 3, -2])
@pytest.mark.parametrize("last_bias", [False, True])
def test_a_label_that_is_no_sign_is_refused(label, last_bias, row_of):
    row, _, _ = row_of(convolutional("sigmoid", last_bias=last_bias), label=label)
    said = f"Label {label} was granted, but small is attacked through"
    assert row["status"] == "failed" and row["reason"].startswith(said)
    assert "whose y is -1 or 1" in row["reason"]


def unfit():
    """Views that R-GAP refuses, and what it says of them."""
    networks = [convolutional(a) for a in ("relu", "sigmoid", "leaky_relu")]
    for network in (*networks, convolutional("tanh", bias=True, last_bias=True)):
        given, _, label = seen(network)
        yield replace(given, labels=(-label,)), f"label y = {-label} contradicts the gradient"
    for bias in (False, True):
        network = chain(conv(4, 3), conv(6, 3), bias=bias)
        given = view(network, image(network))
        for label in (-1, 4):
            yield replace(given, labels=(label,)), f"Label {label} was .* has classes 0 to 3"
    yield replace(given, labels=(2,)), r"Label 2 was granted, but .* name class 1"
    several = chain(conv(4, 3), last="identity")
    given = replace(view(several, image(several)), loss="logistic")
    yield given, "logistic loss needs one output, but fc1 has 4"
    curved = chain(conv(4, 3), classes=1, last="sigmoid")
    given = view(curved, image(curved), loss="logistic")
    yield given, "fc1 directly, but it is followed by 'sig"
    given, _, _ = seen(convolutional("sigmoid"))
    left = {name: value for name, value in given.weights.items() if name != "conv2.weight"}
    yield replace(given, weights=left), "set of weights of small lacks conv2.weight"
    broken = left | {"conv2.weight": given.weights["conv2.weight"] * np.nan}
    yield replace(given, weights=broken), "weight conv2.weight of small holds NaN or infinity"


def test_what_does_not_fit_the_network_is_refused():
    for given, words in unfit():
        with pytest.raises(NumericsError, match=words):
            RGap().run(given, 0)
