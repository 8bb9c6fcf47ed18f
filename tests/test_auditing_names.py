"""Reasons of an audit are told in the user's words."""

import numpy as np
import pytest
from torch import nn

from audited import answer, chain_network, changes
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak_audit.attack.attack_suite import menu
from gradleak_audit.read.layer_names import told

TWO = Chain("net", (1, 8, 8), (ConvSpec(2, (3, 3)), ConvSpec(2, (3, 3)), LinearSpec(3)))


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("net: conv2 has a skip; set it.", "stem.b has a skip."),
        ("conv1 of net has none", "stem.a of the network has none."),
        ("models.net: convolution 2: kernel 9 does not fit.", "stem.b: kernel 9 does not fit."),
        ("the norm of conv2_skip is 0", "The norm of the skip's convolution at stem.b is 0."),
        (
            "the gradient of net's fc1.weight is 0",
            "The gradient of the network's layer 4.weight is 0.",
        ),
        ("conv7 is none of them", "Conv7 is none of them."),
    ],
)
def test_reasons_are_told_with_the_users_names(reason, sentence):
    assert told(reason, TWO, ("stem.a", "stem.b", "4")) == sentence


def test_names_that_look_like_a_chains_own_are_not_taken_for_them():
    assert told("conv1 and conv2", TWO, ("conv2", "conv1", "fc")) == "conv2 and conv1."


def test_a_network_without_convolutions_is_told_so():
    chain = Chain("net", (1, 2, 2), (LinearSpec(3),))
    reason = "Lock.layers: conv1 is no convolution here; there are none."
    assert told(reason, chain, ("fc",)) == "There is no convolution."


def test_no_reason_of_a_network_without_convolutions_names_one():
    def layers():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))

    mlp, _ = chain_network(layers, (1, 4, 4), "training")
    entries = menu("smoke", mlp.multiply_adds, mlp.parameters)
    reasons = [mlp.reason(entry) for entry in entries]
    reasons += [variant.reason for variant in changes(mlp).values()]
    assert "There is no convolution." in reasons
    for reason in filter(None, reasons):
        assert "conv1" not in reason and "fc1" not in reason and "net " not in reason, reason


def test_a_failure_names_the_layer_that_the_user_knows():
    def layers():
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))

    net, _ = chain_network(layers, (1, 4, 4), "training")
    label = np.array([1])
    shared = net.share(0, np.full((1, 1, 4, 4), 0.5), label, None, 0)
    shared["conv1.weight"] = np.zeros_like(shared["conv1.weight"])
    found = answer(net, "rgap", shared, label)
    assert isinstance(found, str)
    assert "layer 0" in found and "conv1" not in found
