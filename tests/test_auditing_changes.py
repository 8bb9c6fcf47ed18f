"""Changes of an audit, and why some lead to no network; what comes before a network; reasons."""

import numpy as np
import pytest
import torch
from torch import nn

import audited
from audited import Net, answer, chain_network, changes, made, network_of, of_menu, task
from gradleak.client.defences.soteria import cost
from gradleak.errors import ConfigError
from gradleak.models.build import load
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.locks import is_private
from gradleak.reading.fx_graph import read
from gradleak.reading.gradients import gradient
from gradleak.reading.layer_names import told
from gradleak_audit.attack import attack_suite
from gradleak_audit.attack.attack_suite import MKOR, SEARCH
from gradleak_audit.attack.malicious import chapter
from gradleak_audit.attack.mitigations import NOISE, cut, fewer, gradient_norm, skips, strided
from gradleak_audit.attack.networks import ChainNetwork, ModuleNetwork
from gradleak_audit.attack.samples import from_embedded
from gradleak_audit.attack.trials import Bench
from gradleak_audit.mitigate.mitigation_cost import accuracies


def lenet(second=(8, 3, 1), features=8 * 16):
    filters, kernel, padding = second
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, filters, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(features, 10)),
    )


LENET, RESNET = (lenet, (1, 16, 16)), (audited.resnet18, (3, 32, 32))


@pytest.fixture(scope="module")
def resnet():
    return network_of(*RESNET)


def shares(variant, size):
    images = np.random.default_rng(1).random((variant.batch, *size))
    return variant.network.share(0, images, np.arange(variant.batch), variant.defence, 3)


def test_every_change_of_a_small_network_shares_a_gradient_and_does_what_its_title_says():
    found = changes(network_of(*LENET), (1, 3), norm=2.0)
    noise = [name for name, change in found.items() if change.kind == "noise"]
    assert noise == [f"noise_{level:g}" for level in NOISE]
    reasons = {v.id: v.reason for v in found.values() if v.reason}
    assert reasons == {"cut": "There is no skip connection."}
    for variant in found.values():
        if not variant.reason:
            gradient = shares(variant, (1, 16, 16))
            assert all(np.isfinite(value).all() for value in gradient.values())
    assert found["batch_3"].batch == 3 and found["none"].batch == 1
    plain = shares(found["none"], (1, 16, 16))
    noisy, name = shares(found["noise_1"], (1, 16, 16)), "fc1.weight"
    ratio = (noisy[name] - plain[name]).std() / plain[name].std()
    assert ratio == pytest.approx(1.0, rel=0.1)
    clipped = gradient_norm(shares(found["clip"], (1, 16, 16)))
    assert clipped == pytest.approx(min(0.2, gradient_norm(plain)), rel=1e-4)
    withheld = shares(found["soteria"], (1, 16, 16))[name]
    assert (~withheld.any(axis=0)).mean() >= 0.3


def test_a_lock_keeps_its_key_and_everything_else(resnet):
    own = network_of(*LENET)
    for network, (build, size) in ((own, LENET), (resnet, RESNET)):
        assert network.multiply_adds == read(build(), size).multiply_adds
        assert network.parameters == sum(p.numel() for p in build().parameters())
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
    assert "skip that ends at layer1.0.conv2 cut" in [variant.title for variant in found.values()]
    # Without a skip the main branch alone is left.
    module = made(audited.resnet18).eval()
    block = module.layer1[0]
    main = block.conv1, block.bn1, block.relu, block.conv2, block.bn2, block.relu
    block.forward = nn.Sequential(*main).forward
    changed = found[f"cut_{ends[0] + 1}"].network
    images, ours = torch.rand(2, 3, 32, 32), load(changed.chain, changed.weights(0), torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), module(images), rtol=1e-4, atol=1e-5)


def test_half_the_filters_are_halved_wherever_skips_tie_them(resnet):
    chain = fewer(resnet.chain, 0)
    both = chain.convolutions, resnet.chain.convolutions
    filters, before = ([layer.shape.filters for layer in layers] for layers in both)
    halved = [k for k, (a, b) in enumerate(zip(before, filters, strict=True)) if a != b]
    # The first layer, and the ends of both blocks of the first stage.
    assert halved == [0, 2, 4]
    assert all(filters[k] == before[k] // 2 for k in halved)
    assert len(skips(chain)) == 8


def test_changed_layers_are_drawn_afresh_and_others_stay():
    own = network_of(*LENET)
    found = changes(own, critical=1)["fewer"].network
    before, after, other = own.weights(0), found.weights(0), found.weights(1)
    assert after["conv2.weight"].shape == (4, 6, 3, 3)
    for name in ("conv1.weight", "fc1.bias"):
        np.testing.assert_array_equal(after[name], before[name])
    assert np.abs(after["conv2.weight"] - other["conv2.weight"]).max() > 0
    assert found.parameters < own.parameters


def test_sizes_that_do_not_fit_are_one_sentence():
    chain = network_of(*LENET).chain
    for edit, reason in ((fewer, "It is the last layer"), (strided, "no stride")):
        with pytest.raises(ConfigError, match=reason):
            edit(chain, 2)
    assert strided(chain, 0).convolutions[0].shape.output == (8, 8)
    found = changes(network_of(lambda: lenet((16, 5, 0), 400), (1, 28, 28)))["strided"]
    assert found.network is None
    assert found.reason == "Layer 3 gives 3x3, which a pool of 2x2 does not divide."
    assert cut(chain, []) == chain


@pytest.mark.parametrize("build", [audited.vit, audited.two_branches])
def test_networks_that_are_no_chain_keep_noise_clipping_and_batches(build):
    module, size = made(build), (3, 16, 16)
    own = ModuleNetwork(task(), read(module, size), lambda draw: module)
    found = changes(own, (1, 2), critical=None)
    tried = [variant for variant in found.values() if variant.network is not None]
    assert [v.kind for v in tried] == ["none", "noise", "noise", "noise", "clip", "batch"]
    left = [variant for variant in found.values() if variant.network is None]
    assert {v.kind for v in left} == {"soteria", "lock", "cut", "fewer", "strided"}
    assert all("which this network is not" in v.reason for v in left)
    for variant in tried:
        assert shares(variant, size).keys() == shares(found["none"], size).keys()


def test_soteria_is_not_tried_where_its_passes_are_beyond_the_work():
    small = network_of(*LENET)
    passes = int(cost(small.chain)["passes"])
    needed = 2 * passes * small.multiply_adds
    enough, short = (changes(small, work=needed - less)["soteria"] for less in (0, 1))
    double = changes(small, (2,), work=needed)["soteria"]
    assert enough.network is small and not enough.reason
    assert short.network is None and f"{passes:,} passes back" in short.reason
    assert double.network is None


def test_a_search_that_the_size_cut_is_told():
    vgg = 15_000_000_000, 138_000_000
    few = attack_suite.search_steps(attack_suite.SCALES["laptop"], *vgg)
    assert f"searches had {few} of the" in attack_suite.cut_short("laptop", *vgg)
    assert attack_suite.cut_short("laptop", 400_000, 60_000) == ""


TWO = Chain("net", (1, 8, 8), (ConvSpec(2, (3, 3)), ConvSpec(2, (3, 3)), LinearSpec(3)))


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("net: conv2 has a skip; set it.", "stem.b has a skip."),
        ("conv1 of net has none", "stem.a of the network has none."),
        ("models.net: convolution 2: kernel 9 does not fit.", "stem.b: kernel 9 does not fit."),
        ("the norm of conv2_skip is 0", "The norm of the skip's convolution at stem.b is 0."),
        ("gradient of net's fc1.weight", "Gradient of the network's layer 4.weight."),
        ("net: fc1 has a pool; use dlg.", "Layer 4 has a pool."),
        ("", ""),
        ("conv7 is none of them", "Conv7 is none of them."),
    ],
)
def test_reasons_are_told_with_the_users_names(reason, sentence):
    assert told(reason, TWO, ("stem.a", "stem.b", "4")) == sentence
    # Names that look like a chain's own are not taken for them.
    assert told("conv1 and conv2", TWO, ("conv2", "conv1", "fc")) == "conv2 and conv1."


def test_no_reason_of_a_network_without_convolutions_names_one():
    layers = nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)
    mlp = network_of(lambda: nn.Sequential(*layers), (1, 4, 4))
    reason = "Lock.layers: conv1 is not a convolution here; there are none."
    assert told(reason, mlp.chain, mlp.names) == "There is no convolution."
    entries = attack_suite.menu("smoke", mlp.multiply_adds, mlp.parameters)
    reasons = [mlp.reason(entry) for entry in entries.values()]
    reasons += [variant.reason for variant in changes(mlp).values()]
    assert "There is no convolution." in reasons
    for reason in filter(None, reasons):
        assert "conv1" not in reason and "fc1" not in reason and "net " not in reason, reason


def test_a_failure_names_the_layer_that_the_user_knows():
    layers = nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)
    net, label = network_of(lambda: nn.Sequential(*layers), (1, 4, 4)), np.array([1])
    shared = net.share(0, np.full((1, 1, 4, 4), 0.5), label, None, 0)
    shared["conv1.weight"] = np.zeros_like(shared["conv1.weight"])
    found = answer(net, "rgap", shared, label)
    assert isinstance(found, str) and "layer 0" in found and "conv1" not in found


SIZE = (3, 8, 8)
BENCH = Bench(from_embedded(SIZE, 10), 1, 1, 1, 0.0, 1.0, False)
IMAGE, LABEL = BENCH.batch(1)


def built(activation):
    def layers():
        rest = nn.Conv2d(3, 9, 3, bias=False), activation, nn.Flatten(), nn.Linear(9 * 36, 10)
        mean, std = torch.tensor([[0.5, 0.4, 0.3], [-0.2, 0.25, 0.3]]).view(2, 1, 3, 1, 1)
        parts = {"layers": nn.Sequential(*rest), "mean": mean, "std": std}
        return Net(lambda net, x: net.layers((x - net.mean) / net.std), **parts)

    return chain_network(layers, SIZE, "training")


def test_what_comes_before_a_network_is_in_its_gradient_and_undone_in_answers():
    network, module = built(nn.Tanh())
    shared = network.share(0, IMAGE, LABEL, None, 0)
    theirs = gradient(module, IMAGE, LABEL, "cross_entropy", "training")
    assert np.allclose(shared["conv1.weight"], theirs["layers.0.weight"], atol=1e-6)
    low, high = network.before.bounds(0.0, 1.0)
    # (0 - 0.5) / -0.2 and (1 - 0.5) / -0.2, where the scale turns the range round.
    assert (low, high) == pytest.approx((-2.5, 2.5))
    taken = network.before(IMAGE)
    assert low <= taken.min() and taken.max() <= high
    assert np.allclose(network.before.undo(taken), IMAGE)
    for attack in ("rgap", "gauss_newton"):
        assert network.reason(of_menu(network, attack)) == ""
        found = answer(network, attack, shared, LABEL, IMAGE[None])
        assert np.abs(found.images - IMAGE).max() < 0.02, attack
    found = changes(network)
    changed = [v.network for v in found.values() if v.network is not None]
    assert len(changed) > 5 and all(one.before is network.before for one in changed)
    lock = found["lock"].network
    shared = lock.share(0, IMAGE, LABEL, None, 0)
    assert answer(lock, SEARCH, shared, LABEL).images.shape == IMAGE.shape


def test_what_does_not_know_what_comes_before_says_so(monkeypatch):
    network, _ = built(nn.ReLU())
    monkeypatch.setattr(ChainNetwork, "reason", lambda *given: "")
    entry = of_menu(network, MKOR)
    assert "scales or shifts its image" in chapter(entry, network, BENCH).reason
    unchanged = changes(network)["none"]
    assert "scales or shifts its image" in accuracies([unchanged], BENCH, "smoke")["none"][1]
