"""What a network does to the image before its first layer is known, and undone."""

import numpy as np
import pytest
import torch
from torch import nn

from audited import answer, chain_network, changes, of_menu
from gradleak_audit.attack.attack_suite import MKOR, SEARCH
from gradleak_audit.attack.malicious import chapter
from gradleak_audit.attack.networks import ChainNetwork
from gradleak_audit.attack.samples import from_embedded
from gradleak_audit.attack.trials import Bench
from gradleak_audit.mitigate.mitigation_cost import accuracies
from gradleak_audit.read.client import gradient

SIZE = (3, 8, 8)
BENCH = Bench(from_embedded(SIZE, 10), 1, 1, 1, 0.0, 1.0, False)
IMAGE, LABEL = BENCH.targets(1).inputs(0), BENCH.targets(1).labels[0]


class Normalised(nn.Module):
    """Scales each channel of the image by itself before the first of some layers."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([-0.2, 0.25, 0.3]).view(1, 3, 1, 1))

    def forward(self, x):
        return self.layers((x - self.mean) / self.std)


def built(activation):
    def layers():
        conv = nn.Conv2d(3, 9, 3, bias=False)
        return Normalised(nn.Sequential(conv, activation, nn.Flatten(), nn.Linear(9 * 36, 10)))

    return chain_network(layers, SIZE, "training")


def test_clients_share_the_gradient_of_the_module():
    network, module = built(nn.Tanh())
    ours = network.share(0, IMAGE, LABEL, None, 0)
    theirs = gradient(module, IMAGE, LABEL, "cross_entropy", "training")
    assert np.allclose(ours["conv1.weight"], theirs["layers.0.weight"], atol=1e-6)


def test_bounds_hold_every_input_of_the_first_layer():
    network, _ = built(nn.Tanh())
    low, high = network.before.bounds(0.0, 1.0)
    # (0 - 0.5) / -0.2 and (1 - 0.5) / -0.2, where the scale turns the range round.
    assert (low, high) == pytest.approx((-2.5, 2.5))
    taken = network.before(IMAGE)
    assert low <= taken.min() and taken.max() <= high
    assert np.allclose(network.before.undo(taken), IMAGE)


@pytest.mark.parametrize("attack", ["rgap", "gauss_newton"])
def test_answers_are_images(attack):
    network, _ = built(nn.Tanh())
    assert network.reason(of_menu(network, attack)) == ""
    shared = network.share(0, IMAGE, LABEL, None, 0)
    found = answer(network, attack, shared, LABEL, IMAGE[None])
    assert np.abs(found.images - IMAGE).max() < 0.02


def test_changes_keep_it():
    network, _ = built(nn.Tanh())
    found = changes(network)
    changed = [v.network for v in found.values() if v.network is not None]
    assert len(changed) > 5 and all(one.before is network.before for one in changed)
    lock = found["lock"].network
    shared = lock.share(0, IMAGE, LABEL, None, 0)
    assert answer(lock, SEARCH, shared, LABEL).images.shape == IMAGE.shape


def test_what_does_not_know_it_says_so(monkeypatch):
    network, _ = built(nn.ReLU())
    monkeypatch.setattr(ChainNetwork, "reason", lambda *given: "")
    entry = of_menu(network, MKOR)
    assert "scales or shifts its image" in chapter(entry, network, "none", BENCH).reason
    unchanged = changes(network)["none"]
    assert "scales or shifts its image" in accuracies([unchanged], BENCH, "smoke")["none"].reason
