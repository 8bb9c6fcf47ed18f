"""Studies of the library: every case runs, what was done is not done again, failures stay."""

import numpy as np
import pandas as pd
import pytest
from torch import nn

from benchmarks import client_networks, local_training, norms, private, studies, study
from benchmarks.client_networks import Images
from gradleak.errors import NumericsError

AMOUNTS = {
    "clients": 1,
    "iterations": 2,
    "second": 1,
    "epochs": (1, 2),
    "batch": 2,
    "proxy": 4,
    "train": 20,
    "train_epochs": 1,
}


@pytest.fixture(scope="module")
def data():
    chance = np.random.default_rng(0)
    pixels = chance.integers(0, 256, (24, 3, 32, 32)).astype(np.uint8)
    return Images(pixels, np.arange(24) % 10)


@pytest.fixture
def small(monkeypatch):
    """A network in LeNet's place that Gauss-Newton is done with in no time."""

    def network():
        layers = nn.Conv2d(3, 2, 5, 8, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(32, 10)
        return nn.Sequential(*layers)

    monkeypatch.setattr(client_networks, "NETWORKS", {"lenet": network})


def test_runs_go_on_where_they_were_cut_off(tmp_path):
    calls = []

    def work(value):
        calls.append(value)
        if value == 2:
            raise NumericsError("It is 2.")
        return {"psnr": 10.0 * value, "ssim": 0.1 * value}

    for _ in range(2):
        runs = study.Runs(tmp_path / "runs.csv", ["attack", "client"])
        for client in range(4):
            runs.attempt({"attack": "a", "client": client}, lambda client=client: work(client))
    assert calls == [0, 1, 2, 3]
    (row,) = runs.summary(["attack"]).to_dict("records")
    assert (row["n"], row["n_ok"], row["psnr"]) == (4, 3, pytest.approx(40 / 3))
    half = 4.302653 * np.std([0, 10, 30], ddof=1) / np.sqrt(3)
    assert row["psnr_high"] - row["psnr"] == pytest.approx(half, rel=1e-5)
    table = pd.read_csv(tmp_path / "runs.csv")
    assert table["status"].tolist() == ["ok", "ok", "failed", "ok"]
    assert table["reason"].tolist()[2] == "It is 2."


def test_every_case_of_norms_is_attacked(data, tmp_path):
    found = studies.make("norms", data, data, tmp_path, AMOUNTS)
    assert (found["n_ok"] == found["n"]).all() and len(found) == 2 * len(norms.CASES) - 1
    assert set(found["statistics"]) == {case.statistics for case in norms.CASES}


def test_local_training_has_each_attack_that_applies(data, tmp_path, small):
    found = studies.make("local_training", data, data, tmp_path, AMOUNTS)
    cases = list(local_training.cases((1, 2)))
    assert set(found["attack"]) == set(local_training.ONE)
    untrained = found[found["weights"] == "untrained"]
    assert len(untrained) == sum(
        len(local_training.ONE if case["images"] == 1 else local_training.SEVERAL)
        - (len(local_training.recipe_of(case).batches(case["images"])) == 1)
        for case in cases
    )
    # Closed forms need a mean gradient, which Adam's update has not.
    adam = found[(found["optimiser"] == "adam") & (found["attack"] == "rgap")]
    assert (adam["n_ok"] == 0).all() and len(adam) > 0


@pytest.mark.filterwarnings("ignore:Optimal order is the smallest alpha")
def test_private_tells_epsilon_beside_what_is_read(data, tmp_path, small):
    found = studies.make("private", data, data, tmp_path, AMOUNTS)
    assert (found["n"] == 1).all() and set(found["weights"]) == {"untrained", "trained"}
    assert set(found["defence"]) == {defence for defence, _, _ in private.DEFENCES}
    dp = found[found["defence"] == "dp_sgd"]
    assert np.isfinite(dp["epsilon"]).all() and dp["epsilon"].nunique() >= 3
    assert found[found["defence"] == "clipping"]["epsilon"].isna().all()
