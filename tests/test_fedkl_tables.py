"""FedKL's tables of parameters and of accuracies."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gradleak.claims import load as load_claims
from gradleak.errors import ArtifactError
from gradleak.models import resnet, vgg16
from gradleak.models.activations import Activation
from gradleak.models.build import ChainModule
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock, is_private
from gradleak.training.outputs import CURVE, SUMMARY
from papers.fedkl.tables import accuracy as fedkl_accuracy
from papers.fedkl.tables import parameters as fedkl_parameters

CLAIMS = Path(__file__).parents[1] / "papers/fedkl/claims.yaml"
RELU = Activation("relu")
RUN = {"images": "embedded", "scale": "smoke"}


STRIDES = [((s, s), (2, 2), True, RELU) for s in (2, 2, 1)]
SPECS = {
    "lenet": (*(ConvSpec(12, (5, 5), *more) for more in STRIDES), LinearSpec(10)),
    "resnet20": resnet.specs("resnet20", 16, 10),
    "resnet32": resnet.specs("resnet32", 16, 10),
    "resnet18": resnet.specs("resnet18", 64, 10, "large"),
    "resnet34": resnet.specs("resnet34", 64, 10, "large"),
    "vgg16": vgg16.specs(10),
}
# Of the authors' networks: LeNet with ten classes; the residual networks with a hundred.
COUNTS = {
    ("lenet", 10, "parameters"): 40426,
    ("lenet", 10, "lock"): 24600,
    ("resnet20", 100, "parameters"): 311092,
    ("resnet20", 10, "lock"): 32800,
    ("resnet32", 100, "parameters"): 505524,
    ("resnet18", 100, "lock"): 131200,
    ("vgg16", 100, "key"): 1024,
    ("resnet34", 10, "channels"): 64,
}


def _locked(network):
    """The network of that name with a lock on its first convolution, 10 classes."""
    side = 32 if network in ("lenet", "resnet20", "resnet32") else 224
    specs = with_lock(SPECS[network], ["conv1"], Lock(1024, RELU))
    return Chain(network, (3, side, side), specs)


def _counted(*networks, **more):
    cases = [{"network": n, "row": n, "chain": _locked(n).describe()} for n in networks]
    cases[-1] |= more
    return fedkl_parameters.make({}, {"cases": cases}, RUN)


@pytest.fixture(scope="module")
def parameters():
    frame = _counted(*SPECS)
    assert list(frame.columns) == fedkl_parameters.COLUMNS
    return frame.set_index(["network", "classes", "metric"])["ours"]


@pytest.mark.parametrize("network", SPECS)
def test_the_papers_shares_are_those_of_100_classes(parameters, network):
    claim = next(c for c in load_claims(CLAIMS).claims if c.id == f"fedkl.table3.{network}.share")
    assert claim.paper_value is not None
    assert abs(parameters[network, 100, "share"] - claim.paper_value) <= claim.rounding


def test_counts_of_the_authors_networks(parameters):
    assert {place: parameters[place] for place in COUNTS} == COUNTS
    assert parameters["lenet", 10, "share"] == pytest.approx(60.8, abs=0.1)


@pytest.mark.parametrize("network", ["lenet", "resnet20"])
def test_counts_are_those_of_the_module(parameters, network):
    with torch.device("meta"):
        module = ChainModule(_locked(network), statistics=True)
    sizes = {name: value.numel() for name, value in module.named_parameters()}
    assert parameters[network, 10, "parameters"] == sum(sizes.values())
    assert parameters[network, 10, "lock"] == sum(sizes[name] for name in sizes if is_private(name))
    kept = {name: value.numel() for name, value in module.named_buffers()}
    running = sum(n for name, n in kept.items() if "running" in name)
    assert parameters[network, 10, "statistics"] == running


def test_another_input_changes_what_it_says():
    frame = _counted("lenet", "lenet", input=[1, 28, 28])
    counted = frame[(frame["metric"] == "parameters") & (frame["classes"] == 10)]
    assert list(counted["input"]) == ["3x32x32", "1x28x28"]
    # Two channels of 300 weights less, and 49 of 64 features of each of 12 channels.
    assert counted["ours"].diff().iloc[1] == -600 - 12 * (64 - 49) * 10


def _row(model, client, regime, accuracy, **more):
    row = dict.fromkeys(SUMMARY, "") | {"model": model, "seed": 0, "epochs": 10, "test": 1000}
    row |= {"dropped": 0, "client": client, "regime": regime, "test_accuracy": accuracy}
    return row | more


def _curve(model, values):
    same = dict.fromkeys(CURVE, "") | {"model": model, "seed": 0}
    return [{**same, "epoch": k, "validation_accuracy": v} for k, v in enumerate(values, 1)]


def _training(folder, training, lock, rows, curve):
    """A case of the table, its files written."""
    model = f"net{'_kl' if lock == 'with' else ''}"
    path = folder / f"{training}-{model}"
    pd.DataFrame(rows).to_csv(f"{path}.csv", index=False)
    pd.DataFrame(curve or _curve("other", [0.1])).to_csv(f"{path}.curve.csv", index=False)
    case = {"summary": f"{path}.csv", "curve": f"{path}.curve.csv", "column": "Net, C-10"}
    case |= {"model": model, "training": training, "network": "net", "dataset": "cifar10"}
    return {**case, "split": "train", "lock": lock}


def _table(cases):
    names = {"summaries": "summary", "curves": "curve"}
    files = {key: [case[name] for case in cases] for key, name in names.items()}
    return fedkl_accuracy.make(files, {"curves": cases}, RUN)


def _cases(folder):
    clients = [_row("net_kl", str(k), "fedkl", 0.8 + 0.01 * k, dropped=k) for k in range(3)]
    curves = _curve("net", [0.2, 0.5, 0.6]), _curve("net_kl", [0.1, 0.4, 0.7])
    central = [_row("net", "", "central", 0.9)], [_row("net_kl", "", "central", 0.85)]
    fed = [_row("net", "server", "fedavg", 0.7)], [*clients, _row("net_kl", "random", "fedkl", 0.3)]
    return [
        _training(folder, name, lock, rows, curve)
        for name, *each in (("central", central, curves), ("fed", fed, ([], [])))
        for lock, rows, curve in zip(("without", "with"), *each, strict=True)
    ]


@pytest.fixture
def accuracies(tmp_path):
    frame = _table(_cases(tmp_path))
    assert list(frame.columns) == fedkl_accuracy.COLUMNS
    return frame.set_index(["metric", "lock", "client"]).sort_index()


def test_accuracies_are_percentages_with_binomial_intervals(accuracies):
    plain = accuracies.loc["accuracy", "without", "central"]
    assert (plain["ours"], plain["row"], plain["tested"]) == (90, "Centralized w/o KL", 1000)
    assert (plain["low"], plain["high"]) == pytest.approx((87.99, 91.71), abs=0.01)
    assert plain["error"] == pytest.approx((plain["high"] - plain["low"]) / 2 / 1.959964)
    assert accuracies.loc[("accuracy", "without", "server"), "row"] == "FedAvg"
    client = accuracies.loc["accuracy", "with", "2"]
    assert client["row"] == "FedKL, Client 2" and "did not answer in 2 rounds" in client["note"]
    mean = accuracies.loc["accuracy", "with", "mean"]
    assert mean["ours"] == pytest.approx(81) and tuple(mean[["n", "n_ok"]]) == (3, 3)
    # Three clients are tested on the same images, so their mean is known no better.
    assert mean["error"] == pytest.approx(client["error"], rel=0.05)


def test_gaps_and_changes_are_differences(accuracies):
    gap = accuracies.loc["gap", "with", "mean"]
    parts = accuracies.loc["accuracy", "with", "mean"], accuracies.loc["accuracy", "with", "random"]
    assert gap["ours"] == pytest.approx(51)
    assert gap["error"] == pytest.approx(np.hypot(*(part["error"] for part in parts)))
    own = accuracies.loc["gap", "with", "random"]
    assert tuple(own[["ours", "low", "high", "error"]]) == (0, 0, 0, 0)
    assert accuracies.loc[("change", "with", "central"), "ours"] == pytest.approx(-5)
    change = accuracies.loc["change", "with", "mean"]
    assert change["ours"] == pytest.approx(11) and change["note"] == "against FedAvg"
    assert len(accuracies.loc["change"]) == 2


def test_curves_are_compared_epoch_by_epoch(accuracies):
    found = accuracies.loc["curve_correlation", "with", "central"]
    assert found["ours"] == pytest.approx(np.corrcoef([2, 5, 6], [1, 4, 7])[0, 1])
    above = accuracies.loc["epochs_above", "with", "central"]
    assert above["ours"] == pytest.approx(1 / 3) and "3 epochs" in above["note"]


def test_one_epoch_has_no_correlation(tmp_path):
    cases = _cases(tmp_path)[:2]
    for case in cases:
        pd.DataFrame(_curve(case["model"], [0.5])).to_csv(case["curve"], index=False)
    frame = _table(cases).set_index("metric")
    assert np.isnan(frame.loc["curve_correlation", "ours"])
    assert frame.loc["epochs_above", "ours"] == 0


def test_a_failed_training_leaves_no_mean(tmp_path):
    rows = [_row("net", "", "central", 0.9), _row("net", "", "central", "", seed=1)]
    found = _table([_training(tmp_path, "central", "without", rows, [])]).iloc[0]
    assert np.isnan(found["ours"]) and tuple(found[["n", "n_ok"]]) == (2, 1)
    assert "1 of 2 trainings failed" in found["note"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([_row("other", "", "central", 0.9)], "has no row of net"),
        ([_row("net", "", "central", 0.9)] * 2, "two rows of one client and draw of net"),
    ],
)
def test_summaries_that_do_not_fit_are_refused(tmp_path, rows, words):
    case = _training(tmp_path, "central", "without", rows, [])
    with pytest.raises(ArtifactError, match=words):
        _table([case])
