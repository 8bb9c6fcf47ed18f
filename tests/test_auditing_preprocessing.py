"""What a network does to the image before its first layer is known, and undone."""

import numpy as np
import pytest
import torch
from torch import nn

from gradleak.auditing.cases import Bench
from gradleak.auditing.changes import variants
from gradleak.auditing.client import gradient
from gradleak.auditing.conversion import convert
from gradleak.auditing.malicious import chapter
from gradleak.auditing.menu import MKOR, SEARCH, menu, named
from gradleak.auditing.networks import ChainNetwork, Task
from gradleak.auditing.prices import accuracies
from gradleak.auditing.reading import read
from gradleak.auditing.samples import from_embedded

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
    torch.manual_seed(0)
    module = Normalised(
        nn.Sequential(
            nn.Conv2d(3, 9, 3, bias=False), activation, nn.Flatten(), nn.Linear(9 * 36, 10)
        )
    )
    found = convert(read(module, SIZE), module, "net")
    task = Task("cross_entropy", "training", 0.0, 1.0, torch.device("cpu"))
    weights = found.weights(module)
    return module, ChainNetwork(found.chain, lambda _: weights, task, found.layers, found.before)


def test_clients_share_the_gradient_of_the_module():
    module, network = built(nn.Tanh())
    ours = network.share(0, IMAGE, LABEL, None, 0)
    theirs = gradient(module, IMAGE, LABEL, "cross_entropy", "training")
    assert np.allclose(ours["conv1.weight"], theirs["layers.0.weight"], atol=1e-6)


def test_bounds_hold_every_input_of_the_first_layer():
    _, network = built(nn.Tanh())
    low, high = network.before.bounds(0.0, 1.0)
    # (0 - 0.5) / -0.2 and (1 - 0.5) / -0.2, where the scale turns the range round.
    assert (low, high) == pytest.approx((-2.5, 2.5))
    taken = network.before(IMAGE)
    assert low <= taken.min() and taken.max() <= high
    assert np.allclose(network.before.undo(taken), IMAGE)


@pytest.mark.parametrize("attack", ["rgap", "gauss_newton"])
def test_answers_are_images(attack):
    _, network = built(nn.Tanh())
    entry = named(menu("smoke", network.multiply_adds, network.parameters), attack)
    assert network.reason(entry) == ""
    shared = network.share(0, IMAGE, LABEL, None, 0)
    (answer,) = network.answers(entry, 0, [shared], [LABEL], [0], [IMAGE[None]])
    assert np.abs(answer.images - IMAGE).max() < 0.02


def test_changes_keep_it():
    _, network = built(nn.Tanh())
    found = variants(network, (1,), critical=0, norm=1.0)
    changed = [v.network for v in found if v.network is not None]
    assert len(changed) > 5 and all(one.before is network.before for one in changed)
    entry = named(menu("smoke", network.multiply_adds, network.parameters), SEARCH)
    lock = next(v.network for v in found if v.kind == "lock")
    shared = lock.share(0, IMAGE, LABEL, None, 0)
    (answer,) = lock.answers(entry, 0, [shared], [LABEL], [0], [None])
    assert answer.images.shape == IMAGE.shape


def test_what_does_not_know_it_says_so(monkeypatch):
    _, network = built(nn.ReLU())
    monkeypatch.setattr(ChainNetwork, "reason", lambda *given: "")
    entry = named(menu("smoke", network.multiply_adds, network.parameters), MKOR)
    assert "scales or shifts its image" in chapter(entry, network, "none", BENCH).reason
    unchanged = variants(network, (1,), critical=0, norm=1.0)[:1]
    assert "scales or shifts its image" in accuracies(unchanged, BENCH, "smoke")["none"].reason
