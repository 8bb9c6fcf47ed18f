"""Networks as people bring them: what is audited, and the sentence where it cannot be."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import gradleak
from audited import refused
from gradleak.errors import NotApplicable
from gradleak_audit.read.client import check_training, deltas, gradient
from gradleak_audit.read.conversion import convert
from gradleak_audit.read.fx_graph import read
from gradleak_audit.read.model_checks import FROZEN, HALF, own_copy

SIZE = (1, 6, 6)


def net(conv=None):
    return nn.Sequential(conv or nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: nn.Linear, "network is the class Linear, not a network of it; give Linear("),
        (lambda: 3, "network is of type int, not a torch.nn.Module"),
        (
            lambda: nn.Sequential(torch.jit.script(net())),
            "0 of Sequential is a ScriptModule, which hides its layers",
        ),
        (lambda: torch.compile(net()), "is compiled, which hides its layers; give the network as"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "0.weight of Sequential has no shape yet"),
        (lambda: net(nn.utils.weight_norm(nn.Conv2d(1, 2, 3))), "cannot be copied"),
        (lambda: net(prune.l1_unstructured(nn.Conv2d(1, 2, 3), "weight", 0.5)), "prune.remove"),
    ],
)
def test_what_cannot_be_audited_is_one_sentence(build, part):
    with refused(part):
        own_copy(build())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_taken_in_single(dtype):
    module = net().to(dtype)
    found, notes = own_copy(module)
    assert notes == [HALF] and next(module.parameters()).dtype == dtype
    assert {value.dtype for value in found.parameters()} == {torch.float32}
    convert(read(found, SIZE), found, "net")


def test_precise_networks_stay_so_and_frozen_parameters_are_told():
    module = net().double().requires_grad_(False)
    found, notes = own_copy(module)
    assert notes == [FROZEN] and next(found.parameters()).dtype == torch.float64
    assert all(value.requires_grad for value in found.parameters())
    assert not any(value.requires_grad for value in module.parameters())
    assert own_copy(net())[1] == []


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.spectral_norm])
def test_a_weight_that_is_computed_is_unreadable(norm):
    found, _ = own_copy(net(norm(nn.Conv2d(1, 2, 3))))
    reading = read(found, SIZE)
    with refused(match="^0 computes its weight from other parameters", kind=NotApplicable):
        convert(reading, found, "net")
    labels = np.array([0])
    assert gradient(found, np.ones((1, *SIZE)), labels, "cross_entropy", "training")
    names = [layer.name for layer in reading.layers if layer.is_linear]
    assert names == ["3"]
    assert deltas(found, np.ones(SIZE), 0, "cross_entropy", "training", names)["3"].any()


class Trained(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.fc, self.given = nn.Linear(36, 3), given

    def forward(self, x):
        scores = self.fc(x.flatten(1))
        return self.given(scores) if self.training else scores


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (lambda z: (z, z), r"Trained gives tuple in training mode, but 2 rows of 3 class scores"),
        (lambda z: z[:, :2], r"gives \[2, 2\] in training mode"),
        (lambda z: z @ z, r"takes no images of 1x6x6 in training mode \(.*\); take mode: eval"),
    ],
)
def test_a_network_that_gives_something_else_in_training_is_refused_there(given, part):
    module = Trained(given).eval()
    with refused(match=part):
        check_training(module, SIZE, 3)
    assert not module.training
    with refused(match=part):
        gradleak.audit(module, SIZE, scale="smoke")
    check_training(Trained(nn.Identity()), SIZE, 3)
