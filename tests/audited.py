"""Networks that nobody at gradleak wrote, as people bring them to an audit; how tests read them."""

import re
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision import models

from gradleak.errors import ConfigError
from gradleak.reading.conversion import convert
from gradleak.reading.fx_graph import read
from gradleak_audit.attack.attack_suite import menu
from gradleak_audit.attack.mitigations import variants
from gradleak_audit.attack.networks import ChainNetwork, Shared, Task
from gradleak_audit.attack.samples import from_embedded
from gradleak_audit.attack.trials import Bench

CPU, SIZE = torch.device("cpu"), (3, 16, 16)


def made(build, seed=0):
    torch.manual_seed(seed)
    return build()


def task(mode="evaluation"):
    return Task("cross_entropy", mode, 0.0, 1.0, CPU)


def chain_network(build, size, mode="evaluation"):
    """A network as a chain, and the module that it was read from."""
    module = made(build)
    found = convert(read(module, size), module, "net")
    weights, more = found.weights(module), (found.layers, found.before)
    return ChainNetwork(task(mode), found.chain, lambda draw: weights, *more), module


def network_of(build, size=SIZE, mode="evaluation"):
    return chain_network(build, size, mode)[0]


def changes(network, batches=(1,), critical=0, norm=1.0, **more):
    """Changes of a network by their ids, no id twice."""
    found = variants(network, batches, critical=critical, norm=norm, **more)
    by_id = {variant.id: variant for variant in found}
    assert len(by_id) == len(found)
    return by_id


def of_menu(network, name):
    return menu("smoke", network.multiply_adds, network.parameters)[name]


def answer(network, name, gradient, labels, start=None):
    return network.answers(of_menu(network, name), 0, [Shared(gradient, labels, 0, start)])[0]


@contextmanager
def refused(*parts, match="", kind=ConfigError):
    """Something is refused in one sentence, which has these parts and matches."""
    with pytest.raises(kind) as error:
        yield
    text = str(error.value)
    assert "\n" not in text and text.endswith("."), text
    assert re.search(match, text) and all(part in text for part in parts), text


def photos():
    whole = from_embedded(SIZE, 10)
    return replace(whole, images=whole.images[:300], labels=whole.labels[:300])


def bench(samples):
    return Bench(samples, 2, 1, 2, 0.0, 1.0, margin=False)


class Net(nn.Module):
    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.run(self, x)


def lenet_by_functions():
    def run(net, x):
        x = functional.relu(functional.max_pool2d(net.c1(x), 2))
        x = functional.max_pool2d(torch.tanh(net.c2(x)), 2)
        x = x.view(x.size(0), -1)
        return net.f2(functional.dropout(functional.relu(net.f1(x)), training=net.training))

    convolutions = {"c1": nn.Conv2d(1, 6, 5, padding=2), "c2": nn.Conv2d(6, 16, 5)}
    return Net(run, **convolutions, f1=nn.Linear(400, 120), f2=nn.Linear(120, 10))


def two_branches():
    def run(net, x):
        both = torch.cat([torch.tanh(net.fine(x)), torch.tanh(net.coarse(x))], 1)
        return net.head(both.flatten(1))

    fine, coarse = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 5, padding=2)
    return Net(run, fine=fine, coarse=coarse, head=nn.Linear(8 * 16 * 16, 10))


def branching():
    def run(net, x):
        return net.fc(-x.flatten(1) if x.mean() > 0 else x.flatten(1))

    return Net(run, fc=nn.Linear(12, 2))


class Steps(nn.Module):
    """A convolution and a fully connected layer, and linear steps of one's own around them."""

    def __init__(self, before=None, between=None, after=None):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.25, 0.3]).view(1, 3, 1, 1))
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 8 * 8, 5)
        self.steps = before, between, after

    def forward(self, x):
        before, between, after = self.steps
        x = before(self, x) if before else x
        x = torch.relu(self.conv(x))
        x = (between(x) if between else x).flatten(1)
        return after(self.fc(x)) if after else self.fc(x)


def all_convolutions():
    first = nn.Conv2d(1, 4, 5, 2), nn.Tanh(), nn.Conv2d(4, 6, 12), nn.Tanh()
    return nn.Sequential(*first, nn.Conv2d(6, 10, 1), nn.Flatten())


def cnn3():
    first = nn.Conv2d(3, 6, 4, 2, bias=False), nn.Tanh()
    second = nn.Conv2d(6, 3, 3, 2, bias=False), nn.Tanh()
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(147, 10))


def vit():
    sizes = {"image_size": 16, "patch_size": 4, "hidden_dim": 24, "mlp_dim": 48, "num_classes": 10}
    return models.VisionTransformer(num_layers=1, num_heads=2, **sizes)


def resnet18():
    return models.resnet18(num_classes=10)


def normed():
    def run(net, x):
        x = torch.relu(net.na(net.a(x)))
        x = torch.relu(net.nb(net.b(x)) + net.nskip(net.skip(x)))
        return net.fc(x.mean((2, 3)))

    a, na = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
    b, nb = nn.Conv2d(6, 8, 3, 2, padding=1, bias=False), nn.BatchNorm2d(8)
    skip, nskip = nn.Conv2d(6, 8, 1, 2, bias=False), nn.BatchNorm2d(8)
    return Net(run, a=a, na=na, b=b, nb=nb, skip=skip, nskip=nskip, fc=nn.Linear(8, 10))


def pre_activation():
    def run(net, x):
        z = net.a(x)
        return net.fc((net.b(torch.relu(z)) + z).flatten(1))

    a, b = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
    return Net(run, a=a, b=b, fc=nn.Linear(3 * 8 * 8, 4))


def solvable():
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, bias=False), nn.Tanh()),
        *(nn.Conv2d(6, 9, 3, bias=False), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(9 * 12 * 12, 10)),
    )


def pooled():
    return nn.Sequential(
        *(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(24 * 16, 40), nn.ReLU(), nn.Dropout(), nn.Linear(40, 10)),
    )
