"""Networks whose operations PyTorch differentiates once alone."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision import models

import audited
import gradleak
from audited import Net, refused
from gradleak.attacks.optimization.engine.module_gradients import TWICE, Twice
from gradleak.errors import NotApplicable
from gradleak_audit.attack.attack_suite import ANALYTIC
from gradleak_audit.attack.substitutes import SUBSTITUTES, substituted
from gradleak_audit.run import NetworkAudit, Origin, Settings

photos = pytest.fixture(scope="module")(audited.photos)


def mobilenet():
    return models.mobilenet_v3_small(num_classes=10)


def pooled_embedding():
    def run(net, x):
        rows = net.fc(x.flatten(1))
        return functional.embedding_bag(torch.arange(len(rows))[:, None], rows)

    return Net(run, fc=nn.Linear(3 * 16 * 16, 10))


@pytest.mark.parametrize("function", TWICE)
@pytest.mark.parametrize("inplace", [False, True])
def test_substitutes_have_the_value_and_first_derivative_of_the_original(function, inplace):
    # Kinks and both sides of them.
    start = torch.cat([torch.tensor([-3.0, 3.0, 0.0]), torch.linspace(-5.0, 5.0, 1001)]).double()

    def run():
        x = start.clone().requires_grad_()
        given = x.clone()
        found = function(given, inplace=inplace)
        (slope,) = torch.autograd.grad(found.square().sum(), x, create_graph=True)
        return (given if inplace else found), slope, x

    value, slope, _ = run()
    with Twice():
        own, own_slope, x = run()
    torch.testing.assert_close(own, value, rtol=0, atol=1e-15)
    # PyTorch's own slope is 1/6 in float32.
    torch.testing.assert_close(own_slope, slope, rtol=1e-7, atol=0)
    (second,) = torch.autograd.grad(own_slope.sum(), x)
    inside = start.abs() < 3
    torch.testing.assert_close(second[inside], torch.full_like(second[inside], 2 / 36))
    assert not second[start.abs() > 3].any()


@pytest.mark.parametrize(
    ("build", "operation"),
    [(mobilenet, "hardsigmoid as relu6(x + 3) / 6"), (audited.vit, "fused attention as softmax")],
)
def test_a_page_names_what_attacks_replaced_and_how_far_first_derivatives_agree(
    build, operation, monkeypatch
):
    torch.manual_seed(0)
    model, images = build(), np.random.default_rng(0).random((1, 3, 16, 16), np.float32)
    given = model, images, np.array([1]), "cross_entropy", "evaluation"
    told = substituted(*given)
    assert told.startswith(f"Attacks ran {operation}") and "derivatives agree" in told
    assert float(re.search("differs by (.*) of its norm", told)[1]) < 1e-5
    assert substituted(audited.two_branches(), *given[1:]) == ""
    if build is mobilenet:
        monkeypatch.setitem(TWICE, functional.hardsigmoid, lambda x, inplace=False: x * 0.3)
        assert "derivatives do NOT agree" in substituted(*given)


def test_every_replaced_function_has_a_name_for_the_page():
    assert {function.__name__ for function in TWICE} <= SUBSTITUTES.keys()


def test_mobilenet_is_searched(photos):
    torch.manual_seed(0)
    model = mobilenet().eval()
    images = torch.from_numpy(photos.images[:1]).float() / 255
    shared = gradleak.capture(model, images, [1], mode="evaluation")
    given = shared, model, (3, 16, 16), "inverting_gradients"
    found = gradleak.invert(*given, mode="evaluation", iterations=3)
    assert found.images.shape == images.shape and torch.isfinite(found.images).all()


def test_what_has_no_second_derivative_is_named(photos):
    torch.manual_seed(0)
    model, images = pooled_embedding(), torch.rand(1, 3, 16, 16)
    with refused("Net", "_embedding_bag_backward", kind=NotApplicable):
        gradleak.invert(gradleak.capture(model, images, [1]), model, (3, 16, 16), "dlg")
    settings = replace(Settings(scale="smoke", seeds=1), count=1, batches=(1,))
    origin = Origin("net", "a test", "fresh")
    audit = NetworkAudit(model, (3, 16, 16), lambda *_: photos, settings, origin).run().audit
    # The closed form of its first layer needs none.
    assert all(part.reason for part in audit.attacks if part.id != ANALYTIC)
    assert any("_embedding_bag_backward" in part.reason for part in audit.attacks)
    assert {case.attack for case in audit.cases if case.attempted} == {ANALYTIC}
