"""Models: initial weights, our passes against PyTorch's, and channels that are always zero."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import chain, conv, image, view
from gradleak.client import capture as gradients
from gradleak.client.capture import capture, features_of
from gradleak.models.build import ChainModule, load
from gradleak.models.dead_channels import live_channels
from gradleak.models.initial import family_weights, initial_weights, parameter_shapes
from gradleak.models.numpy_autodiff import deltas, fc_input
from gradleak.servers.mkor import MkorServer
from mkor_cases import NAIVE, OURS, network

CPU = torch.device("cpu")
NETWORKS = {
    "tanh": chain(conv(4, 3), conv(3, 4, stride=2, padding=1), side=11),
    "bias": chain(conv(4, 3, bias=True), conv(2, 2, bias=True, activation="sigmoid")),
    "average": chain(conv(4, 3, padding=1, pool="average"), conv(3, 3, padding=1, bias=True)),
    "max": chain(
        conv(4, 3, padding=1, bias=True, activation="relu", pool="max", padding_mode="replicate"),
        conv(3, 2, stride=2, padding=2, pool="max", padding_mode="replicate"),
    ),
    "leaky": chain(conv(4, 3, activation="leaky_relu", slope=0.2), last="sigmoid", bias=False),
}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_initial_weights_are_those_of_pytorch_in_shape_and_range(network):
    ours = initial_weights(network, 0)
    assert parameter_shapes(network) == {name: value.shape for name, value in ours.items()}
    for name, parameter in ChainModule(network).named_parameters():
        assert (ours[name].shape, ours[name].dtype) == (tuple(parameter.shape), np.float32)
        limit = 1 / np.sqrt(ours[f"{name.split('.')[0]}.weight"][0].size)
        largest = np.abs(ours[name]).max()
        assert largest <= limit and parameter.abs().max() <= limit
        assert largest > 0.9 * limit or ours[name].size <= 50


def test_seeds_differ_and_repeat():
    network = NETWORKS["tanh"]
    both = family_weights([network], 2)["small/conv1.weight"]
    np.testing.assert_array_equal(both[1], initial_weights(network, 1)["conv1.weight"])
    assert not np.array_equal(both[0], both[1])


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_passes_match_pytorch(network):
    target = image(network)
    weights = dict(view(network, target).weights)
    module = load(network, weights, torch.float64)
    found = {}
    for layer in network.layers:
        module.get_submodule(layer.name).register_forward_hook(
            lambda _, inputs, output, name=layer.name: found.update({name: (inputs[0], output)})
        )
    output = module(torch.from_numpy(target)[None])
    loss = torch.nn.functional.cross_entropy(output, torch.tensor([2]))
    entering = found["fc1"][0].detach()[0].numpy()
    np.testing.assert_allclose(fc_input(network, weights, target), entering, atol=1e-12)
    ours = deltas(network, weights, target, 2)
    for layer in network.convolutions:
        (truth,) = torch.autograd.grad(loss, found[layer.name][1], retain_graph=True)
        np.testing.assert_allclose(ours[layer.name], truth[0].numpy(), atol=1e-12)


def test_capture_leaves_the_global_random_state_alone():
    network, before = NETWORKS["tanh"], torch.random.get_rng_state()
    weights = initial_weights(network, 3)
    capture(network, weights, image(network)[None], np.array([0]), precision="float32", device=CPU)
    assert torch.equal(torch.random.get_rng_state(), before)


# --- Channels that are zero whatever the image, and networks without them -------------------------

REDUCE = pytest.mark.parametrize("reduce", ["stride", "max"])
SAME = {"padding": 1, "bias": True, "activation": "relu", "padding_mode": "replicate"}


def images(net, count=5, low=0.0):
    return np.random.default_rng(1).uniform(low, 1.0 + low, (count, *net.input))


def corrupted(server, net):
    return server.corrupt(net, initial_weights(net, 0), 5)


def counts(net, weights, low=0.0, high=1.0):
    return [len(channels) for channels in live_channels(net, weights, low, high)]


def check_features(net, weights, batch):
    with torch.no_grad():
        expected = load(net, weights, torch.float64).features(torch.from_numpy(batch)).numpy()
    found = features_of(net, weights, batch, precision="float64", device=CPU).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    return found


@REDUCE
@pytest.mark.parametrize("server", [NAIVE, OURS], ids=["naive", "silent"])
def test_only_the_channels_of_mkor_s_paths_are_live(reduce, server):
    net = network(reduce)
    sent, values = corrupted(server, net)
    found = live_channels(net, sent, 0.0, 1.0)
    for number, channels in enumerate(found, start=1):
        np.testing.assert_array_equal(channels, np.sort(values[f"channel{number}"]))
        assert len(channels) < len(sent[f"conv{number}.bias"])
    assert check_features(net, sent, images(net)).any()


@pytest.mark.parametrize("noise", [1e-4, 1e-2])
def test_deep_silent_servers_stay_silent(noise):
    net = chain(*(conv(24, 3, **SAME) for _ in range(6)), side=16, channels=3)
    server = MkorServer(classifier="untouched", beta=0.5, spare="silent", noise=noise, shifts=0)
    sent, values = corrupted(server, net)
    assert counts(net, sent) == [len(values[f"channel{n}"]) for n in range(1, 7)]
    assert check_features(net, sent, images(net)).any()


def test_leaking_channels_and_saturated_sigmoids_are_live():
    net = network()
    sent, _ = corrupted(MkorServer(spare="keep", noise=1e-6), net)
    assert counts(net, sent)[0] > 1
    assert check_features(net, sent, images(net)).any()
    net = chain(conv(3, 3, bias=True, activation="sigmoid"))
    for value in (-50.0, -1000.0):
        weights = initial_weights(net, 0)
        weights["conv1.bias"][:2] = value
        assert counts(net, weights) == [3]


@pytest.mark.parametrize("low", [0.0, -0.5])
@pytest.mark.parametrize("mode", ["zeros", "replicate"])
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh", "identity", "sigmoid"])
@settings(max_examples=25)
@given(data=st.data())
def test_features_are_those_of_the_whole_network(activation, mode, low, data):
    kind = {**SAME, "padding_mode": mode, "activation": activation}
    net = chain(conv(5, 3, **kind), conv(6, 3, **kind, pool="average"), side=6)
    weights = initial_weights(net, data.draw(st.integers(0, 5)))
    for name, filters in (("conv1", 5), ("conv2", 6)):
        gone = data.draw(st.lists(st.integers(0, filters - 1), unique=True, max_size=filters - 1))
        weights[f"{name}.weight"][gone] = 0.0
        weights[f"{name}.bias"][gone] = data.draw(st.sampled_from([0.0, -1.0, 1.0]))
    check_features(net, weights, images(net, low=low))


@REDUCE
def test_a_client_s_own_arithmetic_gives_the_same(reduce, monkeypatch):
    # 64 pixels a side pass with channels last, and three images at a time.
    net = network(reduce, side=64)
    monkeypatch.setattr(gradients, "images_at_once", lambda _: 3)
    batch = images(net, 7)
    batch[3:] *= 0.5
    for server in (NAIVE, OURS):
        sent, _ = corrupted(server, net)
        assert counts(net, sent) < [10, 26]
        with torch.no_grad():
            inputs = torch.from_numpy(batch.astype(np.float32))
            expected = load(net, sent, torch.float32).features(inputs).numpy()
        found = features_of(net, sent, batch, precision="float32", device=CPU).numpy()
        assert found.dtype == np.float32 and expected.any()
        np.testing.assert_allclose(found, expected, atol=1e-6 * expected.max())


def test_a_bound_counts_zeros_around_the_image():
    # Pixels are at least 0.5, so a weight of −1 and a bias of 0.2 give less than 0 but at the
    # border, where the filter meets nothing but the bias.
    net = chain(conv(2, 3, padding=1, bias=True, activation="relu"), channels=1, side=4)
    weights = initial_weights(net, 0)
    weights["conv1.weight"][:] = [[[[0.0]]], [[[1.0]]]]
    weights["conv1.weight"][0, 0, 0, 0] = -1.0
    for bias, live in ((0.2, 2), (0.0, 1)):
        weights["conv1.bias"][:] = [bias, 0.0]
        assert counts(net, weights, 0.5, 1.0) == [live]


@pytest.mark.parametrize(
    ("more", "silent", "live"), [({"norm": "batch"}, 2, 4), ({"skip": 1}, 2, 4), ({}, 4, 0)]
)
def test_where_channels_meet_others_all_are_live_and_none_gives_zeros(more, silent, live):
    net = chain(*(conv(4, 3, 1, 1, activation="relu", **each) for each in ({}, more)))
    weights = initial_weights(net, 0)
    for name in ("conv1", "conv2"):
        weights[f"{name}.weight"][:silent] = 0.0
    assert counts(net, weights) == [live, live]
    assert check_features(net, weights, images(net)).any() == bool(live)


def test_the_gradient_of_a_classifier_is_that_of_the_whole_network():
    net = network("max")
    sent, _ = corrupted(OURS, net)
    given, options = (
        (net, sent, images(net), np.arange(5) % 4),
        {"precision": "float64", "device": CPU},
    )
    whole = capture(*given, **options)
    for name, value in capture(*given, kept="classifier", **options).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-9, atol=1e-14)
