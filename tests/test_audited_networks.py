"""Networks under audit in benchmarks: some of torchvision's, some of the twelve, plain attacks."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import audited
from benchmarks import audited_networks, torchvision_networks
from benchmarks.plain_attacks import ATTACKS
from gradleak.reading.untraced import read_or_run
from gradleak.scoring.metrics import image as metrics
from gradleak_audit.attack.networks import ModuleNetwork, Shared
from gradleak_audit.result import Grade

# By name: image, mode of norms.
FEW = {
    "mnasnet0_5": (32, "evaluation"),
    "mobilenet_v3_small": (32, "evaluation"),
    "shufflenet_v2_x0_5": (32, "evaluation"),
    "squeezenet1_1": (32, "training"),
}


def test_some_of_torchvisions_networks_are_read_and_searched_once(tmp_path, monkeypatch):
    path = tmp_path / "runs.csv"
    found = torchvision_networks.compare(path, [*FEW]).set_index("network")
    assert set(found["how"]) == {"derivatives"} and set(found["status"]) == {"ok"}
    assert {n: (row["side"], row["mode"]) for n, row in found.iterrows()} == FEW
    assert found["traced"].all() and found["why"].str.len().all()
    monkeypatch.setattr(torchvision_networks, "attempt", pytest.fail)
    again = torchvision_networks.compare(path, [*FEW])
    assert again["why"].tolist() == found["why"].tolist()
    rows = torchvision_networks.families(pd.read_csv(path)).splitlines()
    assert len(rows) == 2 + len({name.split("_")[0][:6] for name in FEW})


def test_a_network_without_a_second_derivative_is_refused():
    def run(net, x):
        rows = net.fc(x.flatten(1))
        return nn.functional.embedding_bag(torch.arange(len(rows))[:, None], rows)

    net = audited.Net(run, fc=nn.Linear(192, 10))
    assert "_embedding_bag_backward" in torchvision_networks._refusal(net, 8)
    plain = audited.Net(lambda net, x: net.fc(x.flatten(1)), fc=nn.Linear(192, 10))
    assert not torchvision_networks._refusal(plain, 8)
    assert not torchvision_networks._refusal(plain.to("meta"), 8)


def test_networks_of_all_kinds_are_audited_beside_plain_attacks(tmp_path, monkeypatch):
    given = tmp_path / "runs.csv", "smoke", 1
    found = audited_networks.compare(*given, ["value_dependent", "two_branches"])
    assert found["network"].tolist() == ["value_dependent", "two_branches"]
    scores = found[[f"{key}ssim" for key in ("", "dlg_", "inverting_")]]
    assert scores.abs().le(1.0).all(axis=None) and found["cpu"].gt(0).all()
    for column in ("grade", "dlg_grade", "inverting_grade"):
        assert found[column].isin(get_args(Grade)).all()
    monkeypatch.setattr(audited_networks, "_compared", pytest.fail)
    assert len(audited_networks.compare(*given, ["two_branches"])) == 2
    assert len(audited_networks.NETWORKS) == 12


@pytest.mark.parametrize(("level", "least", "most"), [(0.3, 0.0, 0.45), (0.7, 0.55, 1.0)])
def test_a_search_begins_in_the_branch_that_the_client_took(level, least, most):
    torch.manual_seed(0)
    module, size = audited_networks.value_dependent(), audited_networks.SIZE
    reading = read_or_run(module, size)
    network = ModuleNetwork(audited.task(), reading, lambda draw: module)
    images, labels = np.full((1, *size), level, np.float32), np.array([3])
    shared = Shared(network.share(0, images, labels, None, 0), labels, 0)
    start = network._same_branch(module, shared)
    assert start.shape == (1, 1, *size) and least < start.mean() < most
    # Noise hides which parameters were in use.
    everywhere = {name: np.ones_like(value) for name, value in shared.gradient.items()}
    assert network._same_branch(module, replace(shared, gradient=everywhere)) is None


@pytest.mark.parametrize("attack", ATTACKS)
def test_plain_attacks_read_what_a_gradient_gives_away(attack):
    torch.manual_seed(0)
    model, image = nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), torch.rand(1, 3, 8, 8)
    label = torch.tensor([1])
    loss = nn.functional.cross_entropy(model(image), label)
    target = torch.autograd.grad(loss, [*model.parameters()])
    found = ATTACKS[attack](model, [*target], label, (3, 8, 8), 3.0)
    assert metrics.psnr(image[0].numpy(), found[0].numpy()) > 20.0
