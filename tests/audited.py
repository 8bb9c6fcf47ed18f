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
    weights = found.weights(module)
    return (
        ChainNetwork(task(mode), found.chain, lambda draw: weights, found.layers, found.before),
        module,
    )


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
    shared = Shared(gradient, labels, 0, start)
    (found,) = network.answers(of_menu(network, name), 0, [shared])
    return found


@contextmanager
def refused(*parts, match="", kind=ConfigError):
    """Something is refused in one sentence, which has these parts and matches."""
    with pytest.raises(kind) as error:
        yield
    text = str(error.value)
    assert "\n" not in text and text.endswith("."), text
    assert re.search(match, text) and all(part in text for part in parts), text


class Functional(nn.Module):
    """LeNet in PyTorch's own example style: functions, pools before activations, view."""

    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 6, 5, padding=2)
        self.c2 = nn.Conv2d(6, 16, 5)
        self.f1 = nn.Linear(400, 120)
        self.f2 = nn.Linear(120, 10)

    def forward(self, x):
        x = functional.relu(functional.max_pool2d(self.c1(x), 2))
        x = functional.max_pool2d(torch.tanh(self.c2(x)), 2)
        x = x.view(x.size(0), -1)
        return self.f2(functional.dropout(functional.relu(self.f1(x)), training=self.training))


class TwoBranches(nn.Module):
    """A fine and a coarse look at the image, side by side."""

    def __init__(self, classes=10):
        super().__init__()
        self.fine = nn.Conv2d(3, 4, 3, padding=1)
        self.coarse = nn.Conv2d(3, 4, 5, padding=2)
        self.head = nn.Linear(8 * 16 * 16, classes)

    def forward(self, x):
        both = torch.cat([torch.tanh(self.fine(x)), torch.tanh(self.coarse(x))], 1)
        return self.head(both.flatten(1))


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
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, 2),
        nn.Tanh(),
        nn.Conv2d(4, 6, 12),
        nn.Tanh(),
        nn.Conv2d(6, 10, 1),
        nn.Flatten(),
    )


def cnn3():
    """COPA's variant 2: tanh, biases only at the end."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 4, 2, bias=False),
        nn.Tanh(),
        nn.Conv2d(6, 3, 3, 2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(147, 10),
    )


def vit():
    """A small vision transformer."""
    return models.VisionTransformer(
        image_size=16,
        patch_size=4,
        num_layers=1,
        num_heads=2,
        hidden_dim=24,
        mlp_dim=48,
        num_classes=10,
    )


def resnet18():
    return models.resnet18(num_classes=10)


def projected():
    """A residual block whose skip passes a 1x1 convolution."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv2d(3, 4, 3, 2, 1, bias=False)
            self.a_norm = nn.BatchNorm2d(4)
            self.b = nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.b_norm = nn.BatchNorm2d(4)
            self.skip = nn.Conv2d(3, 4, 1, 2, bias=False)
            self.skip_norm = nn.BatchNorm2d(4)
            self.fc = nn.Linear(4, 5)

        def forward(self, x):
            z = self.b_norm(self.b(torch.relu(self.a_norm(self.a(x)))))
            z = torch.relu(z + self.skip_norm(self.skip(x)))
            return self.fc(z.mean((2, 3)))

    return Block()


def pre_activation():
    """The skip takes what stands before the activation."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv2d(3, 3, 3, padding=1)
            self.b = nn.Conv2d(3, 3, 3, padding=1)
            self.fc = nn.Linear(3 * 8 * 8, 4)

        def forward(self, x):
            z = self.a(x)
            return self.fc((self.b(torch.relu(z)) + z).flatten(1))

    return Block()
