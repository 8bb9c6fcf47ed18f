"""`gradleak.inspect`: honest weights pass, those of attackers are named by layer and reason."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import gradleak
from benchmarks import received
from benchmarks.client_networks import Images
from conftest import ROOT
from gradleak.errors import ConfigError
from gradleak.library import weight_tests
from gradleak.library.inspect import RATES

SEEDS = (100, 101)  # none of those of the record


@pytest.fixture(scope="module")
def data():
    chance = np.random.default_rng(0)
    labels = np.arange(60) % 10
    tones = chance.integers(0, 200, (10, 3, 1, 1))
    return Images((tones[labels] + chance.integers(0, 56, (60, 3, 32, 32))).astype("u1"), labels)


@pytest.mark.parametrize("initial", received.INITIAL)
@pytest.mark.parametrize("network", received.NETWORKS)
def test_fresh_weights_look_fresh(network, initial):
    for seed in SEEDS:
        found = gradleak.inspect(received.fresh(network, initial, seed))
        assert found.verdict == "looks fresh" and not found.findings


def test_initializations_are_told_apart():
    for initial in ("Kaiming uniform", "Kaiming normal", "DLG's uniform"):
        table = gradleak.inspect(received.fresh("MLP", initial, 0)).layers
        assert table.initial[0] in (initial, "uniform", "normal")
        assert table.ks_p[0] > 1e-3


@pytest.mark.parametrize("how", ["SGD, 1 epoch", "SGD, weight decay", "Adam"])
@pytest.mark.parametrize("network", ["LeNet-5", "VGG"])
def test_trained_weights_do_not_look_shaped(network, how, data):
    given = data.take(0, 16)
    base = received.fresh(network, "PyTorch default", SEEDS[0])
    module, before = received.rounds(base, received.TRAININGS[how], data, 50, 0)
    found = gradleak.inspect(module, previous=before.state_dict(), images=given[0], labels=given[1])
    assert found.verdict != "looks shaped"


SIGNS = {
    "MKOR, naive": "of the weights are 0",
    "MKOR, eq. 10 to 13 and 20": "pass on one input each",
    "MKOR, classifier untouched": "pass on one input each",
    "class fishing": "a bias is",
    "fishing, last layer scaled": "have norms of",
    "imprint": "proportional to another",
    "imprint, rows with 10 % of noise": "quantiles of a distribution",
    "trap weights": "pairs of opposite sign",
}


@pytest.mark.parametrize("case", received.ATTACKERS)
def test_shaped_weights_are_named(case):
    networks, change = received.ATTACKERS[case]
    for network in networks:
        for seed in SEEDS:
            module = received.fresh(network, "PyTorch default", seed)
            with torch.no_grad():
                change(module, seed)
            found = gradleak.inspect(module)
            assert found.verdict == "looks shaped", (network, seed)
            assert SIGNS[case] in str(found)


@pytest.mark.parametrize("case", received.AVOIDING)
def test_attackers_who_avoid_the_patterns_are_seen_in_no_weights_but_beside_earlier_ones(case):
    base = received.fresh("MLP", "PyTorch default", SEEDS[0])
    module = received.fresh("MLP", "PyTorch default", SEEDS[0])
    with torch.no_grad():
        received.AVOIDING[case][1](module, 0)
    assert gradleak.inspect(module).verdict != "looks shaped"
    seen = gradleak.inspect(module, previous=base.state_dict()).verdict == "looks shaped"
    assert seen == (case != "class fishing, one row ten times as large")


def test_a_batch_tells_of_fishing_in_the_layers_before(data):
    module = received.fresh("VGG", "PyTorch default", SEEDS[0])
    with torch.no_grad():
        received.ATTACKERS["class fishing"][1](module, 0)
    images, labels = data.take(0, 10)  # one image of each class
    table = gradleak.inspect(module, images=images, labels=labels).layers.set_index("layer")
    assert table.vanishing["0"] == pytest.approx(0.9) and table.dsnr["0"] > 1000
    assert "hardly a gradient" in table.why["0"] and table.verdict["0"] == "looks shaped"
    assert table.vanishing["14"] == 0


def test_d_snr_is_the_largest_norm_over_the_others(data):
    module = received.fresh("MLP", "PyTorch default", SEEDS[0])
    images, labels = data.take(0, 4)
    table = gradleak.inspect(module, images=images, labels=labels).layers.set_index("layer")
    norms = [
        float(gradleak.capture(module, images[k : k + 1], labels[k : k + 1])["1.weight"].norm())
        for k in range(4)
    ]
    assert table.dsnr["1"] == pytest.approx(max(norms) / (sum(norms) - max(norms)), rel=1e-5)


def test_statistics_by_hand():
    chance = np.random.default_rng(0)
    weight = chance.normal(size=(6, 40)).astype(np.float32)
    weight[5] = weight[0] + weight[1] - weight[2]
    weight[4] = weight[0] + weight[3]
    found = weight_tests.statistics(weight_tests.layer_of("a", weight, weight[:, 0]))
    assert found["dependent"] == 6 - np.linalg.matrix_rank(weight) == 2
    assert (found["parallel"], found["passing"], found["mirrored"]) == (0, 0, 0)
    norms = np.linalg.norm(weight, axis=1)
    assert found["row_norm"] == pytest.approx(norms.max() / np.median(norms))
    assert found["bias"] == pytest.approx(np.abs(weight[:, 0]).max() / np.median(norms))
    assert [*weight_tests.reasons(found, 6)] == ["the rank is 2 short"]


def test_layers_and_rows_of_zeros_are_no_sign_by_themselves():
    module = received.fresh("MLP", "PyTorch default", 0)
    nn.init.zeros_(module[-1].weight)
    module[1].weight.data[3] = 0.0
    assert gradleak.inspect(module, previous=module.state_dict()).verdict != "looks shaped"


def test_the_state_received_is_looked_at_and_the_network_stays():
    module = received.fresh("MLP", "PyTorch default", 0)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    state["1.weight"][:] = state["1.weight"][0]
    assert gradleak.inspect(module, state).findings[0].startswith("1: 128 of 128 rows are")
    assert gradleak.inspect(module).verdict == "looks fresh"


FOUR = torch.rand(4, 3, 32, 32)


def test_running_statistics_received_count_for_a_batch():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
    )
    model(FOUR)
    more = {"images": FOUR, "labels": [0, 1, 2, 3]}
    state = model.state_dict() | {"1.running_var": torch.full((8,), 50.0)}
    found = gradleak.inspect(model, state, **more)
    assert not found.layers["dsnr"].equals(gradleak.inspect(model, **more).layers["dsnr"])
    model.load_state_dict(state)
    pd.testing.assert_frame_equal(found.layers, gradleak.inspect(model, **more).layers)


MLP = received.fresh("MLP", "PyTorch default", 0)
STATE = MLP.state_dict()


@pytest.mark.parametrize(
    ("model", "more", "words"),
    [
        (nn.Flatten(), {}, "no layer with a matrix of weights"),
        (3, {}, "not a torch.nn.Module"),
        (MLP, {"state": [1]}, "state: give a state dict"),
        (MLP, {"state": {}}, "state: 1.weight of Sequential is missing"),
        (
            MLP,
            {"state": STATE | {"1.weight": torch.zeros(2, 2)}},
            "1.weight is of shape 2x2",
        ),
        (MLP, {"previous": STATE | {"1.bias": STATE["1.bias"] * np.nan}}, "previous: 1.bias"),
        (MLP, {"previous": STATE | {"1.bias": "x"}}, "previous: 1.bias"),
        (MLP, {"images": FOUR}, "labels: give the class"),
        (MLP, {"labels": [1]}, "images: give a batch"),
        (MLP, {"images": FOUR[:2], "labels": [0, 1]}, "images: 2 tell too little"),
        (MLP, {"images": FOUR, "labels": [0, 1, 2, 10]}, "labels: 10 is out of range"),
    ],
)
def test_what_cannot_be_inspected_is_refused_in_one_sentence(model, more, words):
    with pytest.raises(ConfigError, match=words) as caught:
        gradleak.inspect(model, **more)
    assert str(caught.value).count(". ") == 0


def test_the_study_keeps_every_case_and_goes_on(data, tmp_path):
    amounts = {"fresh": 1, "trained": 1, "train_images": 20, "networks": ["DLG's LeNet"]}
    found = received.compare(data, data, tmp_path, amounts)
    cases = found[found["case"] != "all"].groupby("group", sort=False).size().to_dict()
    trainings = len(received.TRAININGS) - 1
    assert cases == {
        "honest": len(received.INITIAL) + trainings, "collapsed": 1,
        "attacker": 2, "avoiding": 1,
    }  # fmt: skip
    honest = found[(found["group"] == "honest") & (found["case"] == "all")].iloc[0]
    assert honest["weights"] == 0 and honest["weights_low"] == 0 < honest["weights_high"]
    before = (tmp_path / "runs.csv").read_bytes()
    pd.testing.assert_frame_equal(received.compare(data, data, tmp_path, amounts), found)
    assert (tmp_path / "runs.csv").read_bytes() == before


PAGE = (ROOT / "docs/received.md").read_text(encoding="utf-8")


def test_the_page_runs_and_its_rates_are_those_on_record(capsys):
    torch.manual_seed(0)
    exec(re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1], {})
    printed = capsys.readouterr().out
    assert "The network looks shaped." in printed and "0: " in printed
    found = pd.read_csv(ROOT / "src/gradleak/library" / RATES)
    assert re.search(rf"On record, 0 of {found.n[found.case == 'all'].iloc[0]} honest", printed)
    rows = re.findall(
        r"^\| (\w+) \| ([^|]+) \| (\d+) \| (\d*) \| (\d*) \| (\d*) \| (.+) \|$", PAGE, re.M
    )
    counts = lambda row: (  # noqa: E731
        "" if np.isnan(row[k]) else f"{row[k] * row['n']:.0f}" for k in received.LOOKS
    )
    expected = [
        (
            row["group"],
            row["case"],
            str(row["n"]),
            *counts(row),
            f"{row['dsnr']:.2g}, {row['dsnr_largest']:.2g}",
        )
        for _, row in found.iterrows()
    ]
    assert rows == expected and len(rows) > 20
