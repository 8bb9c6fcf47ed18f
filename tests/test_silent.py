"""Channels that are zero whatever the image, and networks without them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import chain, conv
from gradleak.client import capture as gradients
from gradleak.client.capture import capture, features_of
from gradleak.models.build import load
from gradleak.models.dead_channels import live_channels
from gradleak.models.initial import initial_weights
from gradleak.servers.mkor import MkorServer
from mkor_cases import NAIVE, OURS, network

CPU = torch.device("cpu")
SAME = {"padding": 1, "bias": True, "activation": "relu", "padding_mode": "replicate"}


def images(net, count=5, low=0.0):
    return np.random.default_rng(1).uniform(low, 1.0 + low, (count, *net.input))


def counts(net, weights, low=0.0, high=1.0):
    return [len(channels) for channels in live_channels(net, weights, low, high)]


def check_features(net, weights, batch):
    with torch.no_grad():
        expected = load(net, weights, torch.float64).features(torch.from_numpy(batch)).numpy()
    found = features_of(net, weights, batch, precision="float64", device=CPU).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    return found


@pytest.mark.parametrize("reduce", ["stride", "max"])
@pytest.mark.parametrize("server", [NAIVE, OURS], ids=["naive", "silent"])
def test_only_the_channels_of_mkor_s_paths_are_live(reduce, server):
    net = network(reduce)
    sent, values = server.corrupt(net, initial_weights(net, 0), 5)
    found = live_channels(net, sent, 0.0, 1.0)
    for number, channels in enumerate(found, start=1):
        np.testing.assert_array_equal(channels, np.sort(values[f"channel{number}"]))
        assert len(channels) < len(sent[f"conv{number}.bias"])
    assert check_features(net, sent, images(net)).any()


@pytest.mark.parametrize("noise", [1e-4, 1e-2])
def test_deep_silent_servers_stay_silent(noise):
    net = chain(*(conv(24, 3, **SAME) for _ in range(6)), side=16, channels=3)
    server = MkorServer(classifier="untouched", beta=0.5, spare="silent", noise=noise, shifts=0)
    sent, values = server.corrupt(net, initial_weights(net, 0), 5)
    assert counts(net, sent) == [len(values[f"channel{n}"]) for n in range(1, 7)]
    assert check_features(net, sent, images(net)).any()


def test_leaking_channels_and_saturated_sigmoids_are_live():
    net = network()
    sent, _ = MkorServer(spare="keep", noise=1e-6).corrupt(net, initial_weights(net, 0), 5)
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
@settings(max_examples=25, deadline=None)
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


@pytest.mark.parametrize("reduce", ["stride", "max"])
def test_a_client_s_own_arithmetic_gives_the_same(reduce, monkeypatch):
    # 64 pixels a side pass with channels last, and three images at a time.
    net = network(reduce, side=64)
    monkeypatch.setattr(gradients, "images_at_once", lambda _: 3)
    batch = images(net, 7)
    batch[3:] *= 0.5
    for server in (NAIVE, OURS):
        sent, _ = server.corrupt(net, initial_weights(net, 0), 5)
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
    weights["conv1.weight"][0] = 0.0
    weights["conv1.weight"][0, 0, 0, 0] = -1.0
    weights["conv1.bias"][0] = 0.2
    weights["conv1.weight"][1], weights["conv1.bias"][1] = 1.0, 0.0
    assert counts(net, weights, 0.5, 1.0) == [2]
    weights["conv1.bias"][0] = 0.0
    assert counts(net, weights, 0.5, 1.0) == [1]


@pytest.mark.parametrize("more", [{"norm": "batch"}, {"skip": 1}])
def test_where_channels_meet_others_all_are_live(more):
    kind = {"padding": 1, "activation": "relu"}
    net = chain(conv(4, 3, **kind), conv(4, 3, **kind, **more))
    weights = initial_weights(net, 0)
    for name in ("conv1", "conv2"):
        weights[f"{name}.weight"][:2] = 0.0
    assert counts(net, weights) == [4, 4]
    check_features(net, weights, images(net))


def test_a_network_of_silent_channels_gives_zeros():
    net = chain(*(conv(3, 3, bias=True, activation="relu") for _ in range(2)))
    weights = initial_weights(net, 0)
    for name in ("conv1", "conv2"):
        weights[f"{name}.weight"][:], weights[f"{name}.bias"][:] = 0.0, 0.0
    assert counts(net, weights) == [0, 0]
    assert not check_features(net, weights, images(net)).any()


def test_the_gradient_of_a_classifier_is_that_of_the_whole_network():
    net = network("max")
    sent, _ = OURS.corrupt(net, initial_weights(net, 0), 5)
    batch, labels = images(net), np.array([0, 1, 2, 3, 0])
    options = {"precision": "float64", "device": CPU}
    whole = capture(net, sent, batch, labels, **options)
    found = capture(net, sent, batch, labels, kept="classifier", **options)
    for name, value in found.items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-9, atol=1e-14)
