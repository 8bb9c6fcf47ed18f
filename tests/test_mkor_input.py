"""What MKOR's servers and attacks refuse, in one sentence."""

import dataclasses

import numpy as np
import pytest

from chains import conv, shared
from gradleak.attacks.mkor.attack import Mkor
from gradleak.errors import ConfigError, NumericsError
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.servers.class_fishing import ClassFishingServer
from gradleak.servers.mkor import MkorServer
from mkor_cases import CLASSES, NAIVE, OURS, PAIRED, batch, network, noisy, received, seen


def net(*specs, size=(1, 8, 8)):
    return Chain("net", size, specs)


HALVING = {"stride": 2, "padding": 1, "activation": "relu"}


@pytest.mark.parametrize(
    ("server", "chain", "words"),
    [
        (PAIRED, network(width=7), ["fc1 has room for 3 pairs", "4 classes", "widen it to 8"]),
        (NAIVE, network(width=3), ["fc1 has room for 3 nodes"]),
        (MkorServer(shifts=5), network(), ["room for 2 four-direction layers", "shifts: 5"]),
        (MkorServer(beta=[1.0] * 3), network(), ["beta has 3 values", "2 convolutions"]),
        (MkorServer(spare="silent"), network(activation="sigmoid"), ["silent needs relu"]),
        (
            MkorServer(spare="silent"),
            net(
                conv(10, 3, **HALVING),
                conv(26, 3, bias=True, **HALVING),
                LinearSpec(60),
                LinearSpec(4),
                size=(1, 16, 16),
            ),
            ["silent lowers biases", "conv1 of net has none", "bias: true"],
        ),
        (ClassFishingServer(target=9), network(), ["target: 9 is no class", "from 0 to 3"]),
        (
            NAIVE,
            net(conv(2, 3, bias=True, activation="relu"), LinearSpec(4), size=(3, 8, 8)),
            ["conv1 has 2 filters", "needs 3", "widen"],
        ),
        (NAIVE, net(conv(2, 3), LinearSpec(4)), ["conv1 is followed by 'tanh'"]),
        (
            NAIVE,
            net(conv(2, 3, padding=1, activation="relu", pool="max"), LinearSpec(4)),
            ["conv1 has no bias", "bias: true"],
        ),
    ],
)
def test_a_network_without_room_is_refused_by_name(server, chain, words):
    with pytest.raises(ConfigError) as caught:
        server.corrupt(chain, initial_weights(chain, 0), 1)
    for word in words:
        assert word in str(caught.value)


def test_an_image_that_pools_do_not_divide_is_refused():
    pooled = conv(2, 3, padding=1, pool="max")
    with pytest.raises(ConfigError, match="conv2 gives 3x3, which a pool of 2x2 does not divide"):
        _ = net(pooled, pooled, LinearSpec(2), size=(1, 6, 6)).layers


def view_of(server=NAIVE, loss="cross_entropy"):
    chain, labels = network(), [0, 1, 2, 3]
    return seen(chain, server, batch(chain, labels), labels, loss)


def test_an_update_of_other_weights_is_refused():
    view = view_of()
    stale = dataclasses.replace(view, fingerprint="0" * 64)
    with pytest.raises(NumericsError, match="not of the weights that this server sent"):
        Mkor().run(stale, 0)
    with pytest.raises(NumericsError, match="no secret to read"):
        Mkor().run(dataclasses.replace(view, secret=None), 0)


def test_a_classifier_that_lets_nothing_through_is_refused():
    chain, labels = network(), [0, 1, 2]
    sent, values = OURS.corrupt(chain, initial_weights(chain, 0), 5)
    sent["fc1.bias"][:] = -10.0
    sent["fc3.bias"][0] = 1.0
    gradients = shared(chain, sent, batch(chain, labels), labels)
    view = received(chain, sent, gradients, values, 3)
    with pytest.raises(NumericsError, match="closes every node"):
        Mkor(rows="all").run(view, 0)


def test_features_that_carry_nothing_are_refused():
    view = view_of(loss="raw_logits")
    view.secret.values["references"][:] = view.secret.values["references"][1]
    with pytest.raises(NumericsError, match="no pixel can be told"):
        Mkor().run(view, 0)


def test_features_that_saturate_the_softmax_are_refused():
    with pytest.raises(NumericsError, match=r"gives class \d alone, .* smaller beta"):
        Mkor().run(view_of(MkorServer(beta=100.0, spare="keep")), 0)


@pytest.mark.parametrize(
    ("loss", "name", "value", "words"),
    [
        ("raw_logits", "fc3.bias", 0.3, r"fc3\.bias sums to 1\.2"),
        ("cross_entropy", "", 0.0, "zero everywhere"),
        ("cross_entropy", "fc2.weight", np.nan, r"fc2.weight holds NaN"),
    ],
)
def test_a_gradient_that_cannot_be_is_refused(loss, name, value, words):
    view = view_of(loss=loss)
    for parameter in view.gradients:
        if parameter.startswith(name):
            view.gradients[parameter][:] = value
    with pytest.raises(NumericsError, match=words):
        Mkor().run(view, 0)


def test_cross_entropy_without_an_output_bias_parameter_is_refused():
    chain = Chain("fc", (1, 8, 8), (LinearSpec(CLASSES, bias=False),))
    labels = [3, 0, 2]
    view = seen(chain, MkorServer(classifier="untouched"), noisy(chain, labels), labels)
    with pytest.raises(NumericsError, match="fc1 has no bias"):
        Mkor().run(view, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": "all", "coupling": "ignore"}, "needs rows: path"),
        ({"native": 4, "estimate": "least_squares"}, "take one of them out"),
        ({"smooth": 4}, "smooth: 4 has no middle pixel"),
        ({"native": 4, "estimate": "direct"}, "native is not for estimate: direct"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, words):
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
