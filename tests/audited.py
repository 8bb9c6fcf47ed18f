"""Networks that nobody at gradleak wrote, as people bring them to an audit; how tests read them."""

import re
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision import models

from gradleak.errors import ConfigError
from gradleak_audit.attack.attack_suite import menu, named
from gradleak_audit.attack.mitigations import variants
from gradleak_audit.attack.networks import ChainNetwork, Shared, Task
from gradleak_audit.read.conversion import convert
from gradleak_audit.read.fx_graph import read

CPU = torch.device("cpu")


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


def changes(network, batches=(1,), critical=0, norm=1.0, **more):
    """Changes of a network by their ids, no id twice."""
    found = variants(network, batches, critical=critical, norm=norm, **more)
    by_id = {variant.id: variant for variant in found}
    assert len(by_id) == len(found)
    return by_id


def of_menu(network, name):
    """An attack at smoke scale."""
    return named(menu("smoke", network.multiply_adds, network.parameters), name)


def answer(network, name, gradient, labels, start=None):
    """What an attack answers to one gradient."""
    return network.answers(of_menu(network, name), 0, [Shared(gradient, labels, 0, start)])[0]


@contextmanager
def refused(*parts, match="", kind=ConfigError):
    """Something is refused in one sentence, which has these parts and matches."""
    with pytest.raises(kind) as error:
        yield
    text = str(error.value)
    assert "\n" not in text and text.endswith("."), text
    assert re.search(match, text) and all(part in text for part in parts), text


class Net(nn.Module):
    """Layers by name, and what passes an image through them."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.run(self, x)


def lenet_by_functions():
    """PyTorch's own example style: functions, pools before activations, view."""

    def run(net, x):
        x = functional.relu(functional.max_pool2d(net.c1(x), 2))
        x = functional.max_pool2d(torch.tanh(net.c2(x)), 2)
        x = x.view(x.size(0), -1)
        return net.f2(functional.dropout(functional.relu(net.f1(x)), training=net.training))

    convolutions = {"c1": nn.Conv2d(1, 6, 5, padding=2), "c2": nn.Conv2d(6, 16, 5)}
    return Net(run, **convolutions, f1=nn.Linear(400, 120), f2=nn.Linear(120, 10))


def two_branches():
    """A fine and a coarse look at the image, side by side."""

    def run(net, x):
        both = torch.cat([torch.tanh(net.fine(x)), torch.tanh(net.coarse(x))], 1)
        return net.head(both.flatten(1))

    fine, coarse = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 5, padding=2)
    return Net(run, fine=fine, coarse=coarse, head=nn.Linear(8 * 16 * 16, 10))


class Branching(nn.Module):
    """Chooses by value, which no graph shows."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 2)

    def forward(self, x):
        x = x.flatten(1)
        if x.mean() > 0:
            x = -x
        return self.fc(x)


class Steps(nn.Module):
    """A convolution and a fully connected layer, and linear steps of one's own around them."""

    def __init__(self, before=None, between=None, after=None, features=4 * 8 * 8):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.25, 0.3]).view(1, 3, 1, 1))
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(features, 5)
        self.steps = before, between, after

    def forward(self, x):
        before, between, after = self.steps
        x = before(self, x) if before else x
        x = torch.relu(self.conv(x))
        x = (between(x) if between else x).flatten(1)
        return after(self.fc(x)) if after else self.fc(x)


def all_convolutions():
    """LeNet's first form: the last layers are convolutions over all that is left."""
    first = nn.Conv2d(1, 4, 5, 2), nn.Tanh(), nn.Conv2d(4, 6, 12), nn.Tanh()
    return nn.Sequential(*first, nn.Conv2d(6, 10, 1), nn.Flatten())


def cnn3():
    """COPA's variant 2: tanh, biases only at the end."""
    first = nn.Conv2d(3, 6, 4, 2, bias=False), nn.Tanh()
    second = nn.Conv2d(6, 3, 3, 2, bias=False), nn.Tanh()
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(147, 10))


def vit():
    sizes = {"image_size": 16, "patch_size": 4, "hidden_dim": 24, "mlp_dim": 48, "num_classes": 10}
    return models.VisionTransformer(num_layers=1, num_heads=2, **sizes)


def resnet18():
    return models.resnet18(num_classes=10)


def projected():
    """A residual block whose skip passes a 1x1 convolution."""

    def run(net, x):
        z = net.b_norm(net.b(torch.relu(net.a_norm(net.a(x)))))
        z = torch.relu(z + net.skip_norm(net.skip(x)))
        return net.fc(z.mean((2, 3)))

    a, b = nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.Conv2d(4, 4, 3, padding=1, bias=False)
    skip, norms = nn.Conv2d(3, 4, 1, 2, bias=False), [nn.BatchNorm2d(4) for _ in range(3)]
    named = dict(zip(("a_norm", "b_norm", "skip_norm"), norms, strict=True))
    return Net(run, a=a, b=b, skip=skip, fc=nn.Linear(4, 5), **named)


def pre_activation():
    """The skip takes what stands before the activation."""

    def run(net, x):
        z = net.a(x)
        return net.fc((net.b(torch.relu(z)) + z).flatten(1))

    a, b = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
    return Net(run, a=a, b=b, fc=nn.Linear(3 * 8 * 8, 4))
