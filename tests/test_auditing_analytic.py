"""Audits of networks that are no chains, whose first layer gives the image away."""

import numpy as np
import pytest
import torch

import gradleak
from audited import two_branches
from gradleak.reading.untraced import read_or_run
from gradleak_audit.attack.attack_suite import ANALYTIC, menu
from gradleak_audit.attack.networks import ModuleNetwork, Shared, Task
from gradleak_audit.run import silent
from test_library_analytic import SHAPE, Patches, Residual

TASK = Task("cross_entropy", "evaluation", 0.0, 1.0, torch.device("cpu"))


def network(build, size=SHAPE):
    torch.manual_seed(0)
    module = build()
    return ModuleNetwork(TASK, read_or_run(module, size), lambda _: module)


@pytest.mark.parametrize("build", [Patches, Residual])
def test_an_image_that_the_first_layer_sees_is_read(build):
    own, entry = network(build), menu("smoke", 1, 1)[ANALYTIC]
    image = np.random.default_rng(1).random((1, *SHAPE), dtype=np.float32)
    labels = np.array([2])
    assert own.reason(entry) == ""
    shared = Shared(own.share(0, image, labels, None, 0), labels, 0)
    (found,) = own.answers(entry, 0, [shared])
    np.testing.assert_allclose(found.images, image, atol=1e-3)
    assert entry.part("").threat == "B"


def test_why_it_is_not_is_said():
    entry = menu("smoke", 1, 1)[ANALYTIC]
    assert "sees pixels" in network(two_branches, (3, 16, 16)).reason(entry)
    # More patches than outputs: this depends on the gradient, and fails.
    few = network(lambda: Patches(side=2, width=8))
    assert few.reason(entry) == ""
    labels = np.array([1])
    image = np.random.default_rng(1).random((1, *SHAPE), dtype=np.float32)
    (why,) = few.answers(entry, 0, [Shared(few.share(0, image, labels, None, 0), labels, 0)])
    assert "leaves some of them open" in why


def test_an_audit_reads_a_transformer_that_searches_do_not():
    torch.manual_seed(0)
    found = gradleak.audit(Patches(), SHAPE, scale="smoke", count=2, seeds=1)
    own = [case for case in found.result.cases if case.change == "none"]
    best = max(own, key=lambda case: case.read)
    assert best.attack == ANALYTIC and best.read == best.attempted == 2


def test_a_gradient_of_zeros_is_noted():
    torch.manual_seed(0)
    model = Patches()
    torch.nn.init.zeros_(model.last.weight)
    found = gradleak.audit(model, SHAPE, scale="smoke", count=1, seeds=1).result
    count = len(list(model.parameters()))
    said = f"Under these weights, {count - 2} of {count} tensors of the gradient are 0"
    assert any(said in line for line in found.verdict.limits)
    assert silent({"a": np.zeros(2), "b": np.ones(2), "c": np.ones(1)}) == ""
