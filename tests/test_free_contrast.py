"""Contrast that norms divide out, and balanced searches that do not lose it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import gradleak
from benchmarks.audited_networks import Net, dropout_norms
from chains import chain, conv
from gradleak.attacks.optimization.engine.free_contrast import (
    CONTRAST,
    contrast,
    free_contrast,
    without_contrast,
)
from gradleak.attacks.optimization.inverting import ASSUMED

SIZE = (3, 8, 8)


def network(norm: nn.Module, *before: nn.Module, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 3, 2, 1, bias=bias), norm, nn.ReLU(), nn.Dropout(0.5)
    return nn.Sequential(*before, *first, nn.Flatten(), nn.Linear(8 * 16, 5))


class Scaling(nn.Module):
    """Preprocessing as in front of many networks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / 0.25


def branches(net, x):
    return net.head(torch.cat([net.norm(net.one(x)), net.two(x)], 1).flatten(1))


def in_float32(net, x):
    return net.head(net.norm(x @ torch.eye(8)).flatten(1))


CASES = {
    "batch norm": (network(nn.BatchNorm2d(8)), "training", "batch"),
    "running statistics": (network(nn.BatchNorm2d(8)), "evaluation", None),
    "no statistics kept": (
        network(nn.BatchNorm2d(8, track_running_stats=False)),
        "evaluation",
        "batch",
    ),
    "preprocessing": (network(nn.BatchNorm2d(8), Scaling()), "training", "batch"),
    "instance norm": (network(nn.InstanceNorm2d(8)), "training", "image"),
    "group norm": (network(nn.GroupNorm(2, 8), bias=False), "training", "image"),
    "group norm behind biases": (network(nn.GroupNorm(2, 8)), "training", None),
    "no norm": (network(nn.Identity()), "training", None),
    "norms in one branch": (
        Net(
            branches,
            one=nn.Conv2d(3, 4, 3),
            two=nn.Conv2d(3, 4, 3),
            norm=nn.BatchNorm2d(4),
            head=nn.Linear(288, 5),
        ),
        "training",
        None,
    ),
    "float32 alone": (
        Net(in_float32, norm=nn.BatchNorm2d(3), head=nn.Linear(192, 5)),
        "training",
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_contrast_is_free_where_norms_divide_it_out(case):
    module, mode, expected = CASES[case]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    module.train()
    assert free_contrast(module, SIZE, mode) == expected
    assert all(part.training for part in module.modules())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (chain(conv(4, 3, norm=True)), "batch"),
        (chain(conv(4, 3), conv(4, 3, norm=True)), None),
        (chain(conv(2, 3, padding=1, norm=True, skip=1)), None),  # the image itself goes past it
    ],
)
def test_chains_are_tried_as_networks_are(network, expected):
    assert free_contrast(network, network.input, "training") == expected
    assert (
        free_contrast(network, network.input, "evaluation") == expected
    )  # they keep no statistics


def test_a_slope_without_contrast_changes_no_contrast():
    x = torch.rand(2, 3, 1, 6, 6, dtype=torch.float64)
    slope = torch.randn_like(x)
    for scope, shape in (("image", (2, 3, 1, 1, 1)), ("batch", (2, 1, 1, 1, 1))):
        left = without_contrast(slope, x, scope)
        apart, size = contrast(x, scope)
        assert size.shape == shape
        assert torch.allclose((left * apart).sum((-3, -2, -1)).sum(1), torch.zeros(2).double())
        assert torch.allclose(contrast(3.0 * x + 1.0, scope)[1], 3.0 * size)
        assert torch.allclose(without_contrast(apart, x, scope), torch.zeros_like(x), atol=1e-12)
    own = contrast(x, "image")[1]
    assert torch.allclose(contrast(x, "batch")[1], own.square().mean(1, keepdim=True).sqrt())


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-2.0, 2.0)])
def test_a_search_keeps_the_contrast_that_total_variation_would_take(low, high):
    torch.manual_seed(1)
    model = dropout_norms().train()
    model[3].p = 0.0
    y, x = np.mgrid[:32, :32] / 31.0
    picture = np.stack([x, y, (x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.1]) * (high - low) + low
    picture = torch.from_numpy(picture[None]).float()
    gradient = gradleak.capture(model, picture, [3])
    settings = {"labels": [3], "low": low, "high": high, "iterations": 120}
    found = gradleak.invert(gradient, model, (3, 32, 32), "inverting_gradients", **settings)
    assert ASSUMED in found.stop
    apart = found.images - found.images.mean((-2, -1), keepdim=True)
    # Values outside the range are cut after the contrast is set.
    assert 0.8 * CONTRAST < apart.square().mean().sqrt() / (high - low) <= CONTRAST + 1e-4
    alike = np.corrcoef(found.images.flatten(), picture.flatten())[0, 1]
    assert alike > 0.4  # noise has 0
    model.eval()
    own = gradleak.capture(model, picture, [3], mode="evaluation")
    other = gradleak.invert(
        own, model, (3, 32, 32), "inverting_gradients", mode="evaluation", **settings
    )
    assert ASSUMED not in other.stop
    known = gradleak.invert(
        gradient, model.train(), (3, 32, 32), "inverting_gradients", norms="running", **settings
    )
    assert ASSUMED not in known.stop  # the statistics tell it
