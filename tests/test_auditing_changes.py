"""Changes of an audit: the networks they lead to, with which weights, and why some lead to none."""

import numpy as np
import pytest
import torch
from torch import nn

import audited
from audited import chain_network, changes, made, task
from gradleak.client.defences.soteria import cost
from gradleak.errors import ConfigError
from gradleak.models.build import load
from gradleak.models.locks import is_private
from gradleak_audit.attack import attack_suite
from gradleak_audit.attack.mitigations import NOISE, cut, fewer, gradient_norm, skips, strided
from gradleak_audit.attack.networks import ModuleNetwork
from gradleak_audit.read.fx_graph import read
from gradleak_audit.read.layer_names import told


def lenet(second=(8, 3, 1), features=8 * 16):
    filters, kernel, padding = second
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, filters, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(features, 10)),
    )


def network(build, size):
    return chain_network(build, size)[0]


SMALL = {"resnet18": (audited.resnet18, (3, 32, 32)), "lenet": (lenet, (1, 16, 16))}


@pytest.fixture(scope="module")
def resnet():
    return network(*SMALL["resnet18"])


def shares(variant, size):
    images = np.random.default_rng(1).random((variant.batch, *size))
    return variant.network.share(0, images, np.arange(variant.batch), variant.defence, 3)


def test_every_change_of_a_small_network_shares_a_gradient():
    found = changes(network(*SMALL["lenet"]), (1, 3), norm=2.0)
    noise = [name for name, change in found.items() if change.kind == "noise"]
    assert noise == [f"noise_{level:g}" for level in NOISE]
    reasons = {v.id: v.reason for v in found.values() if v.reason}
    assert reasons == {"cut": "There is no skip connection."}
    for variant in found.values():
        if not variant.reason:
            gradient = shares(variant, (1, 16, 16))
            assert all(np.isfinite(value).all() for value in gradient.values())
    assert found["batch_3"].batch == 3 and found["none"].batch == 1


def test_noise_and_clipping_do_what_their_titles_say():
    found = changes(network(*SMALL["lenet"]), norm=2.0)
    plain = shares(found["none"], (1, 16, 16))
    noisy = shares(found["noise_1"], (1, 16, 16))
    name = "fc1.weight"
    ratio = (noisy[name] - plain[name]).std() / plain[name].std()
    assert ratio == pytest.approx(1.0, rel=0.1)
    clipped = gradient_norm(shares(found["clip"], (1, 16, 16)))
    assert clipped == pytest.approx(min(0.2, gradient_norm(plain)), rel=1e-4)
    withheld = shares(found["soteria"], (1, 16, 16))[name]
    assert (~withheld.any(axis=0)).mean() >= 0.3


def test_a_lock_keeps_its_key_and_everything_else():
    own = network(*SMALL["lenet"])
    locked = changes(own)["lock"].network
    assert [layer.name for layer in locked.chain.locked] == ["conv1"]
    before, after = own.weights(0), locked.weights(0)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    shared = locked.share(0, np.zeros((1, 1, 16, 16)), np.array([1]), None, 0)
    assert not any(is_private(name) for name in shared)
    assert "conv1_key" not in after and "conv1_key" in locked.held(0)


def test_skips_that_carry_most_are_cut_one_by_one_and_all_at_once(resnet):
    found = changes(resnet)
    ends = skips(resnet.chain)
    assert len(ends) == 8
    carried = [resnet.chain.layers[end].shape.positions for end in ends]
    assert carried == sorted(carried, reverse=True)
    one = found[f"cut_{ends[0] + 1}"].network.chain
    assert len(skips(one)) == 7 and ends[0] not in skips(one)
    assert found["cut_all"].network.chain.is_sequential
    assert found["cut_all"].title == "all 8 skips cut"
    names = [v.title for v in found.values() if v.kind == "cut"]
    assert "skip that ends at layer1.0.conv2 cut" in names


def test_without_a_skip_the_main_branch_alone_is_left(resnet):
    """The cut network computes what the module does when its shortcut gives zero."""
    module = made(audited.resnet18).eval()
    end = skips(resnet.chain)[0]
    block = module.layer1[0]
    block.forward = lambda x: block.relu(
        block.bn2(block.conv2(block.relu(block.bn1(block.conv1(x)))))
    )
    changed = changes(resnet)[f"cut_{end + 1}"].network
    images, ours = torch.rand(2, 3, 32, 32), load(changed.chain, changed.weights(0), torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), module(images), rtol=1e-4, atol=1e-5)


def test_half_the_filters_are_halved_wherever_skips_tie_them(resnet):
    chain = fewer(resnet.chain, 0)
    filters = [layer.shape.filters for layer in chain.convolutions]
    before = [layer.shape.filters for layer in resnet.chain.convolutions]
    halved = [k for k, (a, b) in enumerate(zip(before, filters, strict=True)) if a != b]
    # The first layer, and the ends of both blocks of the first stage.
    assert halved == [0, 2, 4]
    assert all(filters[k] == before[k] // 2 for k in halved)
    assert len(skips(chain)) == 8


def test_changed_layers_are_drawn_afresh_and_others_stay():
    own = network(*SMALL["lenet"])
    found = changes(own, critical=1)["fewer"].network
    before, after = own.weights(0), found.weights(0)
    assert after["conv2.weight"].shape == (4, 6, 3, 3)
    np.testing.assert_array_equal(after["conv1.weight"], before["conv1.weight"])
    np.testing.assert_array_equal(after["fc1.bias"], before["fc1.bias"])
    other = found.weights(1)
    assert np.abs(after["conv2.weight"] - other["conv2.weight"]).max() > 0
    assert found.parameters < own.parameters


def test_sizes_that_do_not_fit_are_one_sentence():
    chain = network(*SMALL["lenet"]).chain
    with pytest.raises(ConfigError, match="It is the last layer"):
        fewer(chain, 2)
    with pytest.raises(ConfigError, match="no stride"):
        strided(chain, 2)
    odd = network(lambda: lenet((16, 5, 0), 400), (1, 28, 28))
    found = changes(odd)["strided"]
    assert found.network is None
    assert found.reason == "Layer 3 gives 3x3, which a pool of 2x2 does not divide."


def test_twice_the_stride_halves_the_map():
    chain = strided(network(*SMALL["lenet"]).chain, 0)
    assert chain.convolutions[0].shape.output == (8, 8)


@pytest.mark.parametrize("build", [audited.vit, audited.two_branches])
def test_networks_that_are_no_chain_keep_noise_clipping_and_batches(build):
    module, size = made(build), (3, 16, 16)
    own = ModuleNetwork(task(), read(module, size), lambda draw: module, "it branches.")
    found = changes(own, (1, 2), critical=None)
    tried = [variant for variant in found.values() if variant.network is not None]
    assert [v.kind for v in tried] == ["none", "noise", "noise", "noise", "clip", "batch"]
    left = [variant for variant in found.values() if variant.network is None]
    assert {v.kind for v in left} == {"soteria", "lock", "cut", "fewer", "strided"}
    assert all("it branches." in v.reason for v in left)
    for variant in tried:
        assert shares(variant, size).keys() == shares(found["none"], size).keys()


@pytest.mark.parametrize("name", SMALL)
def test_multiply_adds_of_a_chain_are_those_of_its_reading(name):
    build, size = SMALL[name]
    own = network(build, size)
    assert own.multiply_adds == read(build(), size).multiply_adds
    assert own.parameters == sum(p.numel() for p in build().parameters())


def test_reasons_name_layers_as_the_user_does():
    own = network(*SMALL["lenet"])
    said = told("net: conv2 has a pool; use dlg.", own.chain, own.names)
    assert said == "Layer 3 has a pool."
    assert told("", own.chain, own.names) == ""
    assert cut(own.chain, []) == own.chain


def test_soteria_is_not_tried_where_its_passes_are_beyond_the_work():
    """VGG-16 at 224x224 has 25,088 features, whose receptive fields all overlap."""
    small = network(lenet, (1, 16, 16))
    passes = int(cost(small.chain)["passes"])
    needed = 2 * passes * small.multiply_adds
    enough = changes(small, work=needed)["soteria"]
    short = changes(small, work=needed - 1)["soteria"]
    double = changes(small, (2,), work=needed)["soteria"]
    assert enough.network is small and not enough.reason
    assert short.network is None and f"{passes:,} passes back" in short.reason
    assert double.network is None


def test_a_search_that_the_size_cut_is_told():
    """VGG-16's multiply-adds at 224x224, and LeNet's."""
    vgg = 15_000_000_000, 138_000_000
    few = attack_suite.search_steps(attack_suite.SCALES["laptop"], *vgg)
    assert f"searches had {few} of the" in attack_suite.cut_short("laptop", *vgg)
    assert attack_suite.cut_short("laptop", 400_000, 60_000) == ""
