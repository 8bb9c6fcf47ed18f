"""The first layer of any network, read in closed form."""

import pytest
import torch
from torch import nn

import gradleak
from gradleak.errors import NotApplicable, NumericsError
from test_library import caught, psnr

SHAPE, CLASSES = (3, 8, 8), 5


class Residual(nn.Module):
    """A fully connected network with a skip that depends on a value, which no tracer follows."""

    def __init__(self, bias=True):
        super().__init__()
        self.first = nn.Linear(192, 40, bias=bias)
        self.inner, self.last = nn.Linear(40, 40), nn.Linear(40, CLASSES)

    def forward(self, x):
        hidden = torch.relu(self.first(x.flatten(1)))
        if hidden.sum() > 0:
            hidden = hidden + torch.tanh(self.inner(hidden))
        return self.last(hidden)


class Patches(nn.Module):
    """A small transformer: patches by a convolution or a fully connected layer, and positions."""

    def __init__(self, side=4, width=24, token=True, learned=True, linear=False, stride=None):
        super().__init__()
        count, self.side, self.linear = (8 // side) ** 2, side, linear
        size = 3 * side * side
        self.embed = nn.Linear(size, width) if linear else nn.Conv2d(3, width, side, stride or side)
        self.token = nn.Parameter(torch.randn(1, 1, width)) if token else None
        shape = 1, count + token, width
        self.positions = nn.Parameter(0.1 * torch.randn(shape)) if learned else None
        self.block = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True, dropout=0.0)
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x):
        if self.linear:
            cut = x.unfold(2, self.side, self.side).unfold(3, self.side, self.side)
            tokens = self.embed(cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
        else:
            tokens = self.embed(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        if self.positions is not None:
            tokens = tokens + self.positions
        return self.last(self.block(tokens).mean(1))


def shared_by(model, recipe=None):
    torch.manual_seed(1)
    images = torch.rand(1, *SHAPE)
    return images, gradleak.capture(model, images, [2], recipe=recipe)


@pytest.mark.parametrize(
    "build",
    [
        Residual,
        Patches,
        lambda: Patches(token=False),
        lambda: Patches(linear=True),
        lambda: Patches(side=2, width=32),
    ],
)
def test_one_image_comes_back_from_the_first_layer(build):
    torch.manual_seed(0)
    model = build()
    images, shared = shared_by(model)
    found = gradleak.invert(shared, model, SHAPE, "analytic")
    assert psnr(images, found.images) > 60 and found.labels == (2,) and found.threat == "B"
    assert found.distance < 1e-3


def test_an_update_is_carried_to_the_image():
    torch.manual_seed(0)
    model = Patches()
    images, update = shared_by(model, gradleak.Recipe(rate=0.05, epochs=3))
    found = gradleak.invert(update, model, SHAPE, "analytic")
    assert psnr(images, found.images) > 25 and found.threat == "C"


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Patches(learned=False), "sums to that of its bias"),
        (lambda: Residual(bias=False), "has no bias"),
        (lambda: Patches(token=False, learned=False, stride=2), "sees pixels scaled, padded"),
    ],
)
def test_what_it_does_not_read_is_refused(build, words):
    torch.manual_seed(0)
    model = build()
    _, shared = shared_by(model)
    with pytest.raises(NotApplicable, match=words):
        gradleak.invert(shared, model, SHAPE, "analytic")


def test_more_patches_than_outputs_are_open():
    torch.manual_seed(0)
    model = Patches(side=1, width=4, token=False)
    _, shared = shared_by(model)
    with pytest.raises(NumericsError, match="rank 4 for 64 patches"):
        gradleak.invert(shared, model, SHAPE, "analytic")


def test_settings_and_batches_are_refused():
    torch.manual_seed(0)
    model = Residual()
    _, shared = shared_by(model)
    caught(lambda: gradleak.invert(shared, model, SHAPE, "analytic", rate=1.0), "take rate out")
    caught(
        lambda: gradleak.invert(shared, model, SHAPE, "analytic", batch=2),
        "batch of 2",
        kind=NotApplicable,
    )
