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
from refusals import refused


def net(*specs, size=(1, 8, 8)):
    return Chain("net", size, specs)


RELU = {"activation": "relu"}
HALVING = {"stride": 2, "padding": 1, **RELU}
BARE = (conv(10, 3, **HALVING), conv(26, 3, bias=True, **HALVING), LinearSpec(60), LinearSpec(4))
NARROW = net(conv(2, 3, bias=True, **RELU), LinearSpec(4), size=(3, 8, 8))
UNBIASED = net(conv(2, 3, padding=1, **RELU, pool="max"), LinearSpec(4))
SILENT = MkorServer(spare="silent")
SIGMOID = network(activation="sigmoid")
POOLED = conv(2, 3, padding=1, pool="max")


@pytest.mark.parametrize(
    ("server", "chain", "words"),
    [
        (PAIRED, network(width=7), ["fc1 has room for 3 pairs", "4 classes", "widen it to 8"]),
        (NAIVE, network(width=3), ["fc1 has room for 3 nodes"]),
        (MkorServer(shifts=5), network(), ["room for 2 four-direction layers", "shifts: 5"]),
        (MkorServer(beta=[1.0] * 3), network(), ["beta has 3 values", "2 convolutions"]),
        (SILENT, SIGMOID, ["silent needs relu"]),
        (SILENT, net(*BARE, size=(1, 16, 16)), ["conv1 of net has none", "bias: true"]),
        (ClassFishingServer(target=9), network(), ["target: 9 is no class", "from 0 to 3"]),
        (NAIVE, NARROW, ["conv1 has 2 filters", "needs 3", "widen"]),
        (NAIVE, net(conv(2, 3), LinearSpec(4)), ["conv1 is followed by 'tanh'"]),
        (NAIVE, UNBIASED, ["conv1 has no bias", "bias: true"]),
    ],
)
def test_a_network_without_room_is_refused_by_name(server, chain, words):
    with refused(*words, kind=ConfigError):
        server.corrupt(chain, initial_weights(chain, 0), 1)


def test_an_image_that_pools_do_not_divide_is_refused():
    with refused("conv2 gives 3x3, which a pool of 2x2 does not divide", kind=ConfigError):
        _ = net(POOLED, POOLED, LinearSpec(2), size=(1, 6, 6)).layers


def view_of(server=NAIVE, loss="cross_entropy"):
    chain, labels = network(), [0, 1, 2, 3]
    return seen(chain, server, batch(chain, labels), labels, loss)


def changed(**fields):
    return lambda: dataclasses.replace(view_of(), **fields)


def with_gradient(loss, name, value):
    def make():
        view = view_of(loss=loss)
        for parameter in view.gradients:
            if parameter.startswith(name):
                view.gradients[parameter][:] = value
        return view

    return make


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
    (changed(fingerprint="0" * 64), {}, "not of the weights that this server sent"),
    (changed(secret=None), {}, "no secret to read"),
    (closed, {"rows": "all"}, "closes every node"),
    (blank, {}, "no pixel can be told"),
    (lambda: view_of(MkorServer(beta=100.0, spare="keep")), {}, r"gives class \d alone, .* beta"),
    (with_gradient("raw_logits", "fc3.bias", 0.3), {}, r"fc3\.bias sums to 1\.2"),
    (with_gradient("cross_entropy", "", 0.0), {}, "zero everywhere"),
    (with_gradient("cross_entropy", "fc2.weight", np.nan), {}, "fc2.weight holds NaN"),
    (unbiased, {}, "fc1 has no bias"),
    (lambda: view_of(OURS), {}, "set rows: all"),
]


@pytest.mark.parametrize(("make", "options", "words"), VIEWS, ids=[words for *_, words in VIEWS])
def test_what_cannot_be_attacked_is_refused(make, options, words):
    with pytest.raises(NumericsError, match=words):
        Mkor(**options).run(make(), 0)


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
