"""FedKL's table of accuracies, which Tables I and III and the claims on them are made from."""

import numpy as np
import pandas as pd
import pytest

from gradleak.errors import ArtifactError
from gradleak.training.outputs import CURVE, SUMMARY
from papers.fedkl.tables import accuracy as fedkl_accuracy

RUN = {"images": "embedded", "scale": "smoke"}


def _row(model, client, regime, accuracy, **more):
    row = dict.fromkeys(SUMMARY, "") | {"model": model, "seed": 0, "epochs": 10, "test": 1000}
    row |= {"dropped": 0, "client": client, "regime": regime, "test_accuracy": accuracy}
    return row | more


def _curve(model, values):
    same = dict.fromkeys(CURVE, "") | {"model": model, "seed": 0}
    return [{**same, "epoch": k, "validation_accuracy": v} for k, v in enumerate(values, 1)]


def _training(folder, training, lock, rows, curve):
    """A case of the table, its files written."""
    model = "net_kl" if lock == "with" else "net"
    case = {"column": "Net, C-10", "network": "net", "dataset": "cifar10", "split": "train"}
    for name, table in (("summaries", rows), ("curves", curve or _curve("other", [0.1]))):
        case[name] = f"{folder}/{training}-{model}-{name}.csv"
        pd.DataFrame(table).to_csv(case[name], index=False)
    return {**case, "model": model, "training": training, "lock": lock}


def _table(cases):
    files = {name: [case[name] for case in cases] for name in ("summaries", "curves")}
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
        pd.DataFrame(_curve(case["model"], [0.5])).to_csv(case["curves"], index=False)
    found = _table(cases).set_index("metric")["ours"]
    assert np.isnan(found["curve_correlation"]) and found["epochs_above"] == 0


def test_a_failed_training_leaves_no_mean(tmp_path):
    rows = [_row("net", "", "central", 0.9), _row("net", "", "central", "", seed=1)]
    found = _table([_training(tmp_path, "central", "without", rows, [])]).iloc[0]
    assert np.isnan(found["ours"]) and tuple(found[["n", "n_ok"]]) == (2, 1)
    assert "1 of 2 trainings failed" in found["note"]


def test_clients_of_one_federation_are_one_training(tmp_path):
    clients = [
        _row("net_kl", client, "fedkl", value, seed=seed)
        for seed, value in enumerate((0.8, 0.9))
        for client in ("0", "1", "random")
    ]
    found = _table([_training(tmp_path, "fed", "with", clients, [])])
    found = found[found["metric"].isin(("accuracy", "gap"))].set_index(["metric", "client"])
    assert set(found["trainings"]) == {2}
    assert list(found.loc["accuracy", "n"]) == [2, 2, 2, 4]
    assert found.loc[("accuracy", "mean"), "ours"] == pytest.approx(85)
    assert list(found.loc[("accuracy", "mean"), ["least", "most"]]) == pytest.approx([80, 90])
    assert list(found.loc[("gap", "mean"), ["least", "most"]]) == [0, 0]


def test_a_client_that_failed_leaves_its_training_without_a_mean(tmp_path):
    values = (("0", 0, 0.8), ("1", 0, ""), ("0", 1, 0.9), ("1", 1, 0.7))
    rows = [_row("net_kl", client, "fedkl", value, seed=seed) for client, seed, value in values]
    found = _table([_training(tmp_path, "fed", "with", rows, [])])
    mean = found.set_index(["metric", "client"]).loc[("accuracy", "mean")]
    assert mean[["least", "most"]].isna().all() and np.isnan(mean["ours"])
    assert (mean["trainings"], mean["n_ok"]) == (2, 3)


def test_summaries_that_do_not_fit_are_refused(tmp_path):
    for rows, words in (
        ([_row("other", "", "central", 0.9)], "has no row of net"),
        ([_row("net", "", "central", 0.9)] * 2, "two rows of one client and draw of net"),
    ):
        case = _training(tmp_path, "central", "without", rows, [])
        with pytest.raises(ArtifactError, match=words):
            _table([case])


def test_losses_are_those_of_the_chosen_epochs(tmp_path):
    rows = [_row("net_kl", who, "fedkl", 0.9, best_epoch=2) for who in ("0", "1", "random")]
    curve = [
        {**dict.fromkeys(CURVE, ""), "model": "net_kl", "seed": 0, "client": who, "epoch": epoch}
        | {"validation_accuracy": 0.5, "validation_loss": base + epoch}
        for who, base in (("0", 0.0), ("1", 1.0), ("random", 5.0))
        for epoch in (1, 2, 3)
    ]
    found = _table([_training(tmp_path, "fed", "with", rows, curve)])
    losses = found[found["metric"] == "loss"].set_index("client")["ours"]
    assert losses.to_dict() == {"0": 2.0, "1": 3.0, "random": 7.0, "mean": 2.5}
