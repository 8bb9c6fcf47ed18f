"""MKOR's paths and parameters: what the server writes into the weights, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.mkor import loop
from chains import conv, net, shared
from conftest import refused
from gradleak.attacks.mkor.attack import Mkor
from gradleak.attacks.mkor.features import describers
from gradleak.attacks.mkor.pixels import Layout, estimate
from gradleak.errors import ConfigError, NumericsError
from gradleak.models import vgg16
from gradleak.models.build import load
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.servers.class_fishing import ClassFishingServer
from gradleak.servers.mkor import MkorServer, references
from gradleak.servers.plan import plan
from gradleak.servers.secret import Secret
from mkor_cases import CLASSES, NAIVE, OURS, PAIRED, batch, given, network, noisy, received, seen


def features_of(chain, sent, images):
    with torch.no_grad():
        return load(chain, sent, torch.float64).features(torch.from_numpy(images)).numpy()


def described(chain, server, count):
    """Random images, paths, what describes the regions, and where each of these begins."""
    sent, values = server.corrupt(chain, initial_weights(chain, 0), 1)
    images, paths = noisy(chain, range(count)), plan(chain)
    secret = Secret("mkor", "", {}, values)
    found = describers(chain, sent, paths, secret, features_of(chain, sent, images))
    places = {
        (k, *place): paths.first[k] + paths.stride * np.array(place)
        for k, *place in np.ndindex(found.shape[1:])
    }
    return images[:, 0], paths, found, places


def test_vgg16_has_the_channels_and_regions_of_the_paper():
    chain = Chain("vgg16", (3, 224, 224), vgg16.specs(10))
    paths = plan(chain)
    counts = [len(step.parent) for step in paths.steps]
    assert counts == [6] * 6 + [24] * 3 + [96] * 3 + [384]
    # Eq. (14), (15): I + J = 5, shifts of 4, 8 and 16 pixels.
    assert (paths.stride, paths.side, paths.average) == (32, 32, False)
    assert sorted(set(paths.first[:, 0])) == [4 * k for k in range(8)]
    # 332,160 of the last convolution's 2,359,808 parameters: 14 % (supplement 7).
    assert 384 * 96 * 9 + 384 == 332_160
    assert abs(332_160 / (512 * (512 * 9 + 1)) - 0.14) < 0.001


@pytest.mark.parametrize("reduce", ["max", "average"])
def test_describers_are_what_their_regions_hold(reduce):
    activation, beta = {"max": ("relu", 1.0), "average": ("sigmoid", 0.01)}[reduce]
    server = NAIVE.model_copy(update={"beta": beta})
    images, paths, found, places = described(network(reduce, activation), server, 3)
    takes, tolerance = {"max": ((np.max, np.min), 1e-5), "average": ((np.mean,), 5e-3)}[reduce]
    for (channel, row, column), (top, left) in places.items():
        part = images[:, top : top + paths.side, left : left + paths.side]
        if top >= 0 and left >= 0 and part.shape[1:] == (paths.side, paths.side):
            expected = takes[int(paths.sign[channel] < 0)](part, axis=(1, 2))
            np.testing.assert_allclose(found[:, channel, row, column], expected, atol=tolerance)


def test_bounds_hold_every_pixel_and_are_the_tightest():
    """Eq. (17) to (19) against a loop over pixels and regions, and that of the benchmark."""
    chain = network("max")
    images, paths, found, places = described(chain, NAIVE, 2)
    layout = Layout(paths, chain.convolutions[-1].grid, 1)
    ours = estimate(layout.regions(found), (16, 16), "bounds")
    np.testing.assert_allclose(loop(chain, paths, found), ours, atol=1e-6)
    for y, x in np.ndindex(16, 16):
        upper, lower = np.full(2, np.inf), np.full(2, -np.inf)
        for (channel, row, column), (top, left) in places.items():
            if top <= y < top + paths.side and left <= x < left + paths.side:
                value = found[:, channel, row, column]
                if paths.sign[channel] > 0:
                    upper = np.fmin(upper, value)
                else:
                    lower = np.fmax(lower, value)
        assert (upper >= images[:, y, x] - 1e-5).all()
        assert (lower <= images[:, y, x] + 1e-5).all()
        np.testing.assert_allclose(ours[:, 0, y, x], 0.5 * (upper + lower), atol=1e-5)


def test_more_shift_layers_give_finer_images():
    chain, labels = network("max"), range(CLASSES)
    # A bright bar that stands between the blocks of the pools.
    images = np.full((CLASSES, 1, 16, 16), 0.2)
    images[..., 6:10] = 0.9
    views = (NAIVE.model_copy(update={"shifts": shifts}) for shifts in (0, 1))
    views = (seen(chain, server, images, labels, "raw_logits") for server in views)
    coarse, fine = (np.mean((Mkor().run(view, 0).images - images) ** 2) for view in views)
    assert fine < 0.5 * coarse


def test_paired_rows_are_those_of_the_paper():
    """Eq. (10) to (13)."""
    chain = network()
    honest = initial_weights(chain, 0)
    sent, values = PAIRED.corrupt(chain, honest, 5)
    nodes, path = values["nodes"], values["path"]
    assert len(set(nodes.ravel())) == 2 * CLASSES
    first, second, last = (sent[f"fc{k}.weight"] for k in (1, 2, 3))
    for n in range(CLASSES):
        a, b = nodes[n]
        alpha = first[b] / first[a]
        np.testing.assert_allclose(alpha, alpha[0], rtol=1e-4)
        assert alpha[0] < 0
        assert sent["fc1.bias"][b] / sent["fc1.bias"][a] == pytest.approx(alpha[0], rel=1e-4)
        np.testing.assert_array_equal(first[a], honest["fc1.weight"][a])
        # One positive weight leads on from each node, |W|; the others are noise.
        end, other = (np.abs(second[:, node]).argmax() for node in (a, b))
        assert end == other
        for node, product in zip((a, b), path[n], strict=True):
            assert second[end, node] == abs(honest["fc2.weight"][end, node])
            assert np.abs(np.delete(second[:, node], end)).max() < 1e-4
            assert product == pytest.approx(second[end, node] * last[n, end])
        assert last[n, end] == abs(honest["fc3.weight"][n, end])
        assert sent["fc2.bias"][end] >= abs(honest["fc2.bias"][end])
    spare = np.setdiff1d(np.arange(60), nodes)
    np.testing.assert_array_equal(first[spare], honest["fc1.weight"][spare])
    np.testing.assert_array_equal(second[:, spare], honest["fc2.weight"][:, spare])


@pytest.mark.parametrize("spare", ["silent", "keep", "noise"])
def test_filters_are_those_of_eq_20(spare):
    chain = network()
    honest = initial_weights(chain, 0)
    server = MkorServer(beta=[0.3, 0.2], spare=spare, noise=1e-3)
    sent, values = server.corrupt(chain, honest, 5)
    before = np.arange(1)
    for number, step in enumerate(plan(chain).steps):
        chosen = values[f"channel{number + 1}"]
        assert len(set(chosen)) == len(step.parent)
        weight, own = (each[f"conv{number + 1}.weight"] for each in (sent, honest))
        other = np.setdiff1d(np.arange(len(weight)), chosen)
        np.testing.assert_array_equal(weight[other], own[other])
        for k, channel in enumerate(chosen):
            filters = weight[channel].copy()
            place = (before[step.parent[k]], *step.tap[k])
            assert filters[place] == pytest.approx((0.3, 0.2)[number] * step.sign[k])
            filters[place] = 0.0
            assert 0 < np.abs(filters[before]).max() < 0.002
            foreign = np.setdiff1d(np.arange(weight.shape[1]), before)
            if spare == "noise":
                assert np.abs(filters[foreign]).max(initial=0) < 0.002
            else:
                np.testing.assert_array_equal(filters[foreign], own[channel][foreign])
        before = chosen
    assert not np.array_equal(values["channel1"], np.arange(len(values["channel1"])))


def test_silent_channels_give_nothing_whatever_the_image():
    chain = network("max")
    sent, values = OURS.corrupt(chain, initial_weights(chain, 0), 5)
    images = np.concatenate([noisy(chain, range(50)).round(), noisy(chain, range(50))])
    maps = torch.relu(load(chain, sent, torch.float64).conv1(torch.from_numpy(images)))
    spare = np.setdiff1d(np.arange(10), values["channel1"])
    assert maps[:, spare].abs().max() == 0
    assert maps[:, values["channel1"]].abs().max() > 0


def test_corrupting_changes_no_input_and_repeats():
    chain = network()
    honest = initial_weights(chain, 0)
    before = {name: value.copy() for name, value in honest.items()}
    first, second = (PAIRED.corrupt(chain, honest, 5) for _ in range(2))
    for name, value in honest.items():
        np.testing.assert_array_equal(value, before[name])
        np.testing.assert_array_equal(first[0][name], second[0][name])
    assert first[0].keys() == honest.keys()
    other = PAIRED.corrupt(chain, honest, 6)[1]
    assert not np.array_equal(first[1]["channel2"], other["channel2"])


@pytest.mark.parametrize("reduce", ["stride", "max", "average"])
def test_references_are_what_constant_images_give(reduce):
    chain = network(reduce, "sigmoid" if reduce == "average" else "relu")
    weights = initial_weights(chain, 0)
    images = np.stack([np.full(chain.input, level) for level in (0.0, 0.5, 1.0)])
    expected = features_of(chain, weights, images)
    np.testing.assert_allclose(references(chain, weights), expected, atol=1e-12)


RELU = {"activation": "relu"}
HALVING = {"stride": 2, "padding": 1, **RELU}
BARE = (conv(10, 3, **HALVING), conv(26, 3, bias=True, **HALVING), LinearSpec(60), LinearSpec(4))
NARROW = net(conv(2, 3, bias=True, **RELU), LinearSpec(4), size=(3, 8, 8))
UNBIASED = net(conv(2, 3, padding=1, **RELU, pool="max"), LinearSpec(4), size=(1, 8, 8))
TANH = net(conv(2, 3), LinearSpec(4), size=(1, 8, 8))
SILENT = MkorServer(spare="silent")
NO_ROOM = [
    (PAIRED, network(width=7), ["fc1 has room for 3 pairs", "4 classes", "widen it to 8"]),
    (NAIVE, network(width=3), ["fc1 has room for 3 nodes"]),
    (MkorServer(shifts=5), network(), ["room for 2 four-direction layers", "shifts: 5"]),
    (MkorServer(beta=[1.0] * 3), network(), ["beta has 3 values", "2 convolutions"]),
    (SILENT, network(activation="sigmoid"), ["silent needs relu"]),
    (SILENT, net(*BARE, size=(1, 16, 16)), ["conv1 of net has none", "bias: true"]),
    (ClassFishingServer(target=9), network(), ["target: 9 is not a class", "from 0 to 3"]),
    (NAIVE, NARROW, ["conv1 has 2 filters", "needs 3", "widen"]),
    (NAIVE, TANH, ["conv1 is followed by 'tanh'"]),
    (NAIVE, UNBIASED, ["conv1 has no bias", "bias: true"]),
]


@pytest.mark.parametrize(("server", "chain", "words"), NO_ROOM)
def test_a_network_without_room_is_refused_by_name(server, chain, words):
    with refused(*words, kind=ConfigError):
        server.corrupt(chain, initial_weights(chain, 0), 1)


def view_of(server=NAIVE, loss="cross_entropy"):
    return given(server, range(4), loss)[0]


def with_gradient(loss, name, value):
    view = view_of(loss=loss)
    for parameter in view.gradients:
        if parameter.startswith(name):
            view.gradients[parameter][:] = value
    return view


def closed():
    """A classifier that lets nothing through."""
    chain, labels = network(), [0, 1, 2]
    sent, values = OURS.corrupt(chain, initial_weights(chain, 0), 5)
    sent["fc1.bias"][:] = -10.0
    sent["fc3.bias"][0] = 1.0
    gradients = shared(chain, sent, batch(chain, labels), labels)
    return received(chain, sent, gradients, values, 3)


def blank():
    """Features that carry nothing."""
    view = view_of(loss="raw_logits")
    view.secret.values["references"][:] = view.secret.values["references"][1]
    return view


def unbiased():
    chain, labels = Chain("fc", (1, 8, 8), (LinearSpec(CLASSES, bias=False),)), [3, 0, 2]
    return seen(chain, MkorServer(classifier="untouched"), noisy(chain, labels), labels)


VIEWS = [
    (lambda: replace(view_of(), fingerprint="0" * 64), "not of the weights that this server sent"),
    (lambda: replace(view_of(), secret=None), "no secret to read"),
    (blank, "no pixel can be told"),
    (lambda: view_of(MkorServer(beta=100.0, spare="keep")), r"gives class \d alone, .* beta"),
    (lambda: with_gradient("raw_logits", "fc3.bias", 0.3), r"fc3\.bias sums to 1\.2"),
    (lambda: with_gradient("cross_entropy", "", 0.0), "zero everywhere"),
    (lambda: with_gradient("cross_entropy", "fc2.weight", np.nan), "fc2.weight holds NaN"),
    (unbiased, "fc1 has no bias"),
    (lambda: view_of(OURS), "set rows: all"),
    (closed, "closes every node"),
]


@pytest.mark.parametrize(("make", "words"), VIEWS, ids=[words for _, words in VIEWS])
def test_what_cannot_be_attacked_is_refused(make, words):
    with pytest.raises(NumericsError, match=words):
        Mkor(rows="all" if make is closed else "path").run(make(), 0)


OPTIONS = {
    "needs rows: path": {"rows": "all", "coupling": "ignore"},
    "take one of them out": {"native": 4, "estimate": "least_squares"},
    "smooth: 4 has no middle pixel": {"smooth": 4},
    "native is not for estimate: direct": {"native": 4, "estimate": "direct"},
}


@pytest.mark.parametrize(("words", "options"), OPTIONS.items())
def test_settings_that_do_not_fit_are_refused(words, options):
    with pytest.raises(ValueError, match=words):
        Mkor(**options)


def test_an_estimate_has_to_fit_the_pools():
    pooled = network("max"), network("average", "sigmoid")
    for kind in ("direct", "average"):
        assert "has max pools" in Mkor(estimate=kind).applies(pooled[0])
        assert Mkor(estimate=kind).applies(pooled[1]) is None
    assert "has average pools" in Mkor().applies(pooled[1])
    assert "native: 5 does not divide" in Mkor(native=5).applies(network())
    assert Mkor().applies(pooled[0]) is None
    halved = conv(2, 3, padding=1, pool="max")
    with refused("conv2 gives 3x3, which a pool of 2x2 does not divide", kind=ConfigError):
        _ = net(halved, halved, LinearSpec(2), size=(1, 6, 6)).layers
